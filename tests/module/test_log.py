from contextlib import suppress

from lightning import LightningModule

from fedlight._module.log import replaced_log


def test_log_is_put_back():
    module = LightningModule()
    mine = []
    with suppress(RuntimeError), replaced_log(module, print, print):
        assert module.log is print
        raise RuntimeError
    assert "log" not in vars(module)
    module.log = mine.append
    with replaced_log(module, print, print), replaced_log(module, len, len):
        assert module.log is module.log_dict is len
    assert module.log == mine.append
    assert "log_dict" not in vars(module)
