"""Values that differ have another content, in every process; what has none is named."""

import argparse
import ast
import dataclasses
import functools
import json
import os
import random
import subprocess
import sys
from functools import lru_cache, partial
from pathlib import Path
from types import CodeType, ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch

import fedlight._runs.content as content_module
from fedlight._module.rng import isolated_rng
from fedlight._runs.code import text_of
from fedlight._runs.content import content, content_of
from fedlight.aggregators import FedAsync, FedAvg, FedBuff
from fedlight.arrivals import ReplayArrivals, ReplayEvent, UniformArrivals
from fedlight.local_optimizers import LocalSGD
from tests.boring import Boring, Point, fitted, points


def scaled(factor):
    return lambda version: factor / (1 + version)


def events(*times):
    return ReplayArrivals([ReplayEvent(0, 0, time, 1) for time in times])


@pytest.mark.parametrize(
    ("one", "same", "other"),
    [
        (FedAsync(0.5), FedAsync(0.5), FedAsync(0.25)),
        (FedAsync(scaled(0.5)), FedAsync(scaled(0.5)), FedAsync(scaled(0.25))),
        (events(1.0), events(1.0), events(2.0)),
        (torch.ones(2), torch.ones(2), torch.zeros(2)),
        (np.ones(2), np.ones(2), np.ones(2, dtype=np.float32)),
        ({"a": {1, 2}}, {"a": {2, 1}}, {"a": {1, 3}}),
        (partial(scaled, 1), partial(scaled, 1), partial(scaled, 2)),
        (Boring, Boring, FedBuff),
        (1, 1.0, True),
    ],
)
def test_content_is_equal_exactly_for_equal_content(one, same, other) -> None:
    assert content(one) == content(same) != content(other)


CODE = """
TEXT = '''
class Rule:
    def __init__(self): self.names = {"a", "b", "c"}
    def weights(self): return FACTOR * len({"x", "y", "z"} & self.names)
FACTOR = 1.0
'''
for text in (TEXT, TEXT.replace("FACTOR *", "2 *"), TEXT.replace("= 1.0", "= 2.0")):
    exec(text, globals())
    print(content(Rule()))
"""


FOLDER = {
    "pkg/__init__.py": "",
    "pkg/sub.py": "from pkg import low\ndef f(): return low.K\n",
    "pkg/low.py": "K = 1\n",
    "main.py": "import pkg.sub\nimport pkg\ndef outside(): return pkg.sub.f()\n"
    "def inside():\n    from pkg.sub import f as other\n    return other()\n"
    "def later():\n    import pkg.low as low\n    return low.K\n"
    "def whole():\n    import pkg.low\n    return getattr(pkg.low, 'K')\n",
}
PRINT = """
import main
print(*(content(getattr(main, each)) for each in ("outside", "inside", "later", "whole")))
"""
IN_FORKS = """
import json, os, sys
from fedlight._runs.content import content

for folder, code in json.loads(sys.argv[1]):
    child = os.fork()
    if child:
        if os.waitpid(child, 0)[1]:
            raise SystemExit(code)
        print("end", flush=True)
        continue
    sys.path.insert(0, folder)
    exec(code, globals())
    break
"""


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> list[list[list[str]]]:
    """What two processes print: `CODE` both, and what is in a folder, one and the other.

    The first one also prints what is in a folder with another number. Strings have another hash in
    each process.
    """
    top = tmp_path_factory.mktemp("folders")
    for folder, factor in (("one", "1"), ("other", "1"), ("third", "2")):
        for name, text in FOLDER.items():
            path = top / folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text.replace("K = 1", f"K = {factor}"))
    found = []
    for seed, folders in (("1", ["one", "third"]), ("2", ["other"])):
        codes = [("", CODE), *((str(top / folder), PRINT) for folder in folders)]
        done = subprocess.run(
            [sys.executable, "-c", IN_FORKS, json.dumps(codes)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        found.append([each.split() for each in done.stdout.split("end\n")[:-1]])
    return found


def test_the_code_of_a_class_counts_and_the_process_does_not(elsewhere) -> None:
    (first, *_), (second, _) = elsewhere
    assert len(first) == len(set(first)) == 3
    assert second == first


def test_a_whole_number_is_one_value_however_it_is_written() -> None:
    assert content([40, 0.5]) == content([40.0, 0.5]) != content([41.0, 0.5])


SETTINGS = {"w": [1.0, torch.ones(2)]}


def test_what_a_function_uses_counts() -> None:
    def rule():
        return SETTINGS["w"][0]

    first = content(rule)
    assert content(rule) == first
    SETTINGS["w"][0] = 3.0
    second = content(rule)
    SETTINGS["w"][1][0] = 5.0
    assert len({first, second, content(rule)}) == 3


class Scaled:
    """A rule of the user."""

    def __init__(self, factor):
        self.factor = factor

    def __call__(self, version):
        return self.factor


class Slotted:
    __slots__ = ("factor",)

    def __init__(self, factor):
        self.factor = factor


OUTSIDE = None


def cached(factor):
    return lru_cache(lambda: factor)


@pytest.mark.parametrize(
    "make",
    [
        np.int64,
        np.float32,
        lambda factor: torch.nn.HuberLoss(delta=factor),
        lambda factor: partial(scaled, factor),
        lambda factor: SimpleNamespace(factor=factor),
        lambda factor: argparse.Namespace(factor=factor),
        lambda factor: Scaled(factor).__call__,
        lambda factor: {"inner": [Scaled(factor)]},
        cached,
        Scaled,
        Slotted,
    ],
    ids=[
        "int64",
        "float32",
        "loss",
        "partial",
        "namespace",
        "options",
        "method",
        "nested",
        "cached",
        "object",
        "slots",
    ],
)
def test_each_kind_of_value_that_a_function_uses_counts(make, monkeypatch) -> None:
    def rule():
        return OUTSIDE

    def of(factor):
        monkeypatch.setitem(globals(), "OUTSIDE", make(factor))
        return content(rule)

    assert of(1) == of(1) != of(2)


def test_functions_of_modules_of_the_user_count(monkeypatch) -> None:
    package, module = ModuleType("userpkg"), ModuleType("userpkg.sub")
    package.sub, module.userpkg = module, package
    monkeypatch.setitem(sys.modules, "userpkg", package)
    monkeypatch.setitem(sys.modules, "userpkg.sub", module)

    def inside():
        import userpkg.sub

        return userpkg.sub.rule()

    def outside():
        return userpkg.sub.rule()  # noqa: F821

    monkeypatch.setitem(globals(), "userpkg", package)
    for function in (inside, outside):
        found = []
        for text in ("def rule(): return 1", "def rule(): return 1", "def rule(): return 2"):
            exec(text, vars(module))
            found.append(content(function))
        assert found[0] == found[1] != found[2]


MODULES = {
    "by its name": "import importlib\ndef rule(): return importlib.import_module('own.low').f()",
    "after a function that uses it": (
        "def rule():\n    def inner(): return low.f()\n"
        "    import own.low as low\n    return inner()"
    ),
    "after a lambda that uses it": (
        "def rule():\n    inner = lambda: low.f()\n    from own import low\n    return inner()"
    ),
}


@pytest.mark.parametrize("text", MODULES.values(), ids=MODULES.keys())
def test_modules_that_a_function_imports_count(text, monkeypatch) -> None:
    package, low = ModuleType("own"), ModuleType("own.low")
    package.low = low
    monkeypatch.setitem(sys.modules, "own", package)
    monkeypatch.setitem(sys.modules, "own.low", low)
    found = []
    for number in (1, 1, 2):
        exec(f"def f(): return {number}", vars(low))
        found.append(of_text(text))
    assert found[0] == found[1]
    assert found[0].digest != found[2].digest
    assert found[0].hidden == ()


GLOBAL_GENERATORS = [
    "from random import shuffle\ndef rule(x): shuffle(x)",
    "from random import random\ndef rule(): return random()",
    "from numpy.random import rand\ndef rule(): return rand()",
    "from scipy.stats import norm\ndef rule(): return norm.rvs()",
    "import torch\nK = torch.default_generator\ndef rule(): return K",
]


@pytest.mark.parametrize("text", GLOBAL_GENERATORS)
def test_the_state_of_a_global_generator_does_not_count(text) -> None:
    """It differs between processes, and a run has its own."""
    first = of_text(text)
    with isolated_rng():
        random.random()
        np.random.random()  # noqa: NPY002
        torch.rand(1)
        assert of_text(text) == first


def test_the_names_of_parameters_count() -> None:
    def one(a, b):
        return a - b

    def other(b, a):
        return b - a

    other.__qualname__ = one.__qualname__
    assert content(one) != content(other)


def test_a_strategy_that_a_run_has_used_has_the_same_content() -> None:
    given = {"local_optimizer": LocalSGD(0.1), "aggregator": FedAvg(1)}
    given["arrivals"] = UniformArrivals(2, 1, 1)
    before = {name: content(each) for name, each in given.items()}
    fitted(Point(), points([0.0, 1.0], [2.0]), max_rounds=2, **given)
    assert {name: content(each) for name, each in given.items()} == before


# What the code reads, by the text of a module of the user.


def module_of(text, name="own_code"):
    """A module of the user with this text."""
    made = ModuleType(name)
    exec(compile(text, f"/anywhere/{name}.py", "exec"), vars(made))
    return made


def of_text(text):
    return content_of(module_of(text).rule, "rule")


CHANGES = {
    "a global": ("K = 1\ndef rule(): return K", "K = 1", "K = 2"),
    "an attribute of a namespace": (
        "from types import SimpleNamespace\nC = SimpleNamespace(a=1)\ndef rule(): return C.a",
        "a=1",
        "a=2",
    ),
    "an attribute of a class": (
        "class C:\n    rate = 1\ndef rule(): return C.rate",
        "rate = 1",
        "rate = 2",
    ),
    "a callable of a class": (
        "from functools import partial\nclass C:\n    __call__ = partial(max, 1)\n"
        "def rule(): return C()()",
        "max, 1",
        "max, 2",
    ),
    "a property": (
        "class C:\n    @property\n    def a(self): return 1\ndef rule(): return C().a",
        "return 1",
        "return 2",
    ),
    "a base class": (
        "class A: pass\nclass B(A): pass\nclass C(A): pass\ndef rule(): return C()",
        "C(A)",
        "C(B)",
    ),
    "a metaclass": (
        "class M(type):\n    def f(self): return 1\nclass C(metaclass=M): pass\n"
        "def rule(): return C.f()",
        "return 1",
        "return 2",
    ),
    "a number kept in a subclass of float": (
        "class F(float): pass\nK = F(1)\ndef rule(): return K",
        "F(1)",
        "F(2)",
    ),
    "an attribute of a subclass of dict": (
        "class D(dict): pass\nK = D(a=1)\nK.more = 1\ndef rule(): return K",
        "more = 1",
        "more = 2",
    ),
    "an item of a subclass of dict": (
        "class D(dict): pass\nK = D(a=1)\ndef rule(): return K",
        "a=1",
        "a=2",
    ),
    "the code of a subclass of list": (
        "class D(list):\n    def f(self): return 1\nK = D()\ndef rule(): return K.f()",
        "return 1",
        "return 2",
    ),
    "an enumeration": (
        "from enum import Enum\nclass E(Enum):\n    A = 1\n    B = 5\ndef rule(): return E.A.value",
        "A = 1",
        "A = 2",
    ),
    "a member of an enumeration": (
        "from enum import IntEnum\nclass E(IntEnum):\n    A = 1\n    B = 5\nK = E.A\n"
        "def rule(): return K",
        "K = E.A",
        "K = E.B",
    ),
    "a data class": (
        "from dataclasses import dataclass\n@dataclass\nclass C:\n    a: int = 1\n"
        "def rule(): return C()",
        "= 1",
        "= 2",
    ),
    "a factory of a data class": (
        "from dataclasses import dataclass, field\n@dataclass\nclass C:\n"
        "    a: list = field(default_factory=lambda: [1])\ndef rule(): return C()",
        "[1]",
        "[2]",
    ),
    "a frozen set": ("K = frozenset({'a', 1})\ndef rule(): return K", "'a', 1", "'a', 2"),
    "a set of functions": (
        "def f(): return 1\ndef g(): return 0\nK = {f, g}\ndef rule(): return K",
        "return 1",
        "return 2",
    ),
    "a function that a function calls": (
        "def g(): return h()\ndef h(): return 1\ndef rule(): return g()",
        "return 1",
        "return 2",
    ),
    "an attribute of a function": (
        "def g(): return g.k\ng.k = 1\ndef rule(): return g()",
        "k = 1",
        "k = 2",
    ),
    "a generator of numbers": (
        "import numpy as np\nK = np.random.default_rng(1)\ndef rule(): return K",
        "rng(1)",
        "rng(2)",
    ),
    "an array of objects": (
        "import numpy as np\nK = np.array([1, 'a', None], dtype=object)\ndef rule(): return K",
        "[1,",
        "[2,",
    ),
    "an array with fields": (
        "import numpy as np\nK = np.zeros(2, dtype=[('a', int)])\nK['a'] = 1\ndef rule(): return K",
        "= 1",
        "= 2",
    ),
    "a date of an array": (
        "import numpy as np\nK = np.array(['2020-01-01'], dtype='M8[D]')\ndef rule(): return K",
        "01-01'",
        "01-02'",
    ),
    "a sparse tensor": (
        "import torch\nK = torch.tensor([[0.0, 1.0]]).to_sparse()\ndef rule(): return K",
        "1.0]",
        "2.0]",
    ),
    "a dtype": ("import torch\nK = torch.float32\ndef rule(): return K", "float32", "float64"),
    "a device": (
        "import torch\nK = torch.device('cpu')\ndef rule(): return K",
        "'cpu'",
        "'meta'",
    ),
    "a deque": (
        "from collections import deque\nK = deque([1])\ndef rule(): return K",
        "[1]",
        "[2]",
    ),
    "a factory of a dict": (
        "from collections import defaultdict\nK = defaultdict(lambda: 1)\ndef rule(): return K[0]",
        "lambda: 1",
        "lambda: 2",
    ),
    "what a reference refers to": (
        "import weakref\nclass A: pass\na = A()\na.k = 1\nK = weakref.ref(a)\n"
        "def rule(): return K().k",
        "k = 1",
        "k = 2",
    ),
    "a zero with a sign": ("K = -0.0\ndef rule(): return 1 / K", "-0.0", "0.0"),
    "a function of a registry": (
        "from functools import singledispatch\n@singledispatch\ndef g(x): return 0\n"
        "@g.register(int)\ndef _(x): return 1\ndef rule(): return g(1)",
        "return 1",
        "return 2",
    ),
    "a schedule of rates": (
        "import torch\np = torch.nn.Parameter(torch.ones(1))\n"
        "K = torch.optim.lr_scheduler.LambdaLR(torch.optim.SGD([p], lr=0.1), lambda e: 1.0)\n"
        "def rule(): return K",
        "e: 1.0",
        "e: 2.0",
    ),
    "a pattern": ("import re\nK = re.compile('a')\ndef rule(): return K", "'a'", "'b'"),
    "a wrapper of a library": (
        "import torch\n@torch.no_grad()\ndef g(): return 1\ndef rule(): return g()",
        "return 1",
        "return 2",
    ),
    "a function of torch around one of the user": (
        "import torch\nK = torch.func.vmap(lambda x: x + 1)\ndef rule(): return K",
        "x + 1",
        "x + 2",
    ),
    "a hook of a module": (
        "import torch\nK = torch.nn.Linear(1, 1)\ntorch.nn.init.ones_(K.weight)\n"
        "torch.nn.init.ones_(K.bias)\n"
        "K.register_forward_hook(lambda *a: 1)\ndef rule(): return K",
        "*a: 1",
        "*a: 2",
    ),
    "an exception that is caught": (
        "def rule():\n    try:\n        a = f()\n        b = g()\n    except ValueError: pass",
        "        b = g()\n    except ValueError: pass",
        "    except ValueError: pass\n    b = g()",
    ),
    "the order of parameters": (
        "def rule(a, b): return a - b",
        "(a, b): return a - b",
        "(b, a): return b - a",
    ),
    "a parameter that only goes by name": ("def rule(a, b): return a", "a, b", "a, *, b"),
    "a default": ("def rule(x=1): return x", "x=1", "x=2"),
    "a default that only goes by name": ("def rule(*, x=1): return x", "x=1", "x=2"),
    "a name of an argument": ("def rule(f): return f(a=1)", "a=1", "b=1"),
    "a function of C in another module": (
        "import math, cmath\nK = math.sqrt\ndef rule(x): return K(x)",
        "K = math",
        "K = cmath",
    ),
    "a property that is deleted": (
        "class C:\n    a = property()\n    @a.deleter\n    def a(self): self.k = 1\n"
        "def rule():\n    c = C()\n    del c.a\n    return c.k",
        "k = 1",
        "k = 2",
    ),
    "what an enumeration does with other values": (
        "from enum import Enum\nclass E(Enum):\n    A = 1\n    B = 5\n    @classmethod\n"
        "    def _missing_(cls, value): return cls.A\ndef rule(): return E(7)",
        "return cls.A",
        "return cls.B",
    ),
    "what a field of a data class is marked with": (
        "from dataclasses import dataclass, field, fields\n@dataclass\nclass C:\n"
        "    a: int = field(default=1, metadata={'k': 1})\n"
        "def rule(): return fields(C)[0].metadata['k']",
        "'k': 1",
        "'k': 2",
    ),
    "a hook of a tensor": (
        "import torch\nK = torch.ones(1, requires_grad=True)\nK.register_hook(lambda g: g * 1)\n"
        "def rule(): return K",
        "g * 1",
        "g * 2",
    ),
    "an attribute of a tensor": (
        "import torch\nK = torch.nn.Parameter(torch.ones(1))\nK.k = 1\ndef rule(): return K.k",
        "k = 1",
        "k = 2",
    ),
    "an attribute of an array of the user's class": (
        "import numpy as np\nclass A(np.ndarray): pass\nK = np.zeros(2).view(A)\nK.k = 1\n"
        "def rule(): return K.k",
        "k = 1",
        "k = 2",
    ),
    "what a weak dict refers to": (
        "import weakref\nclass A: pass\na = A()\na.k = 1\n"
        "K = weakref.WeakValueDictionary({'a': a})\ndef rule(): return K['a'].k",
        "k = 1",
        "k = 2",
    ),
    "what a weak set refers to": (
        "import weakref\nclass A: pass\na = A()\na.k = 1\nK = weakref.WeakSet([a])\n"
        "def rule(): return list(K)[0].k",
        "k = 1",
        "k = 2",
    ),
    "an argument of the program": (
        "import sys\nsys_argv = sys.argv\ndef rule(): return sys_argv[1:]",
        "sys_argv = sys.argv",
        "sys_argv = ['other']",
    ),
}


@pytest.mark.parametrize(("text", "one", "other"), CHANGES.values(), ids=CHANGES.keys())
def test_what_a_function_reads_is_part_of_its_content(text, one, other) -> None:
    assert one in text
    first = of_text(text)
    assert first == of_text(text)
    assert first.digest != of_text(text.replace(one, other)).digest
    assert first.hidden == ()


READ = '''
import os
from functools import partial

class Net:
    """A module."""
    rate = 0.5  # of learning

    def step(self, x):
        """One step."""
        return self.scaled(x, by=[1, 2,
            3]) if x else None

    def scaled(self, x, by):
        total = sum(by)
        return total * x * FACTORS["a"]

FACTORS = {"a": 1, "b": (2, 3)}

def rule(x=1): return Net().step(x)
'''
SAME = '''
import os, sys
from functools import partial

def unrelated(): return 7

FACTORS = {
    "a": 1,  # a comment
    "b": (2, 3),
}


def rule(
    x=1,
):
    """A rule."""
    # One more.
    return Net().step(x)


class Net:
    """Another text."""

    def scaled(self, x, by):
        """Scales."""

        number = sum(by)
        return number * x * FACTORS["a"]

    rate = 0.5

    def step(self, x):
        return (
            self.scaled(x, by=[1, 2, 3])
            if x
            else None
        )
'''


def test_comments_docstrings_format_order_and_local_names_do_not_count() -> None:
    assert of_text(READ) == of_text(SAME)


def test_the_text_of_code_is_that_of_another_format() -> None:
    """Of the functions of three modules, all but a few are the same after `ast.unparse`."""
    same = total = 0
    for module in (ast, dataclasses, functools):
        text = Path(module.__file__).read_text()
        pairs = zip(codes(text), codes(ast.unparse(ast.parse(text))), strict=True)
        for one, other in pairs:
            total += 1
            same += text_of(one) == text_of(other)
    assert total > 300
    assert same >= 0.99 * total


def codes(text):
    waiting = [compile(text, "any", "exec")]
    while waiting:
        code = waiting.pop()
        inner = [each for each in code.co_consts if isinstance(each, CodeType)]
        waiting += inner
        yield from inner


def test_modules_count_in_another_folder_and_process_alike(elsewhere) -> None:
    (_, first, changed), (_, other) = elsewhere
    assert other == first
    assert len(first) == 4
    assert all(one != other for one, other in zip(first, changed, strict=True))


VARIABLES = {
    "item": 'import os\ndef rule(): return os.environ["OWN_RATE"]',
    "get": 'import os\ndef rule(): return os.environ.get("OWN_RATE", "1")',
    "getenv": 'import os\ndef rule(): return float(os.getenv("OWN_RATE", 1))',
    "from": 'from os import environ as e\ndef rule(): return e["OWN_RATE"]',
    "from getenv": 'from os import getenv\ndef rule(): return getenv("OWN_RATE")',
    "within": 'def rule():\n    import os\n    return os.environ["OWN_RATE"]',
    "global": 'import os\nNAME = "OWN_RATE"\ndef rule(): return os.environ[NAME]',
    "in": 'import os\ndef rule(): return "OWN_RATE" in os.environ',
    "default": 'import os\nN = "OWN_RATE"\ndef rule(k): return os.getenv(N, str(k + 1))',
}


@pytest.mark.parametrize("text", VARIABLES.values(), ids=VARIABLES.keys())
def test_environment_variables_that_a_function_names_count(text, monkeypatch) -> None:
    found = []
    for value in ("1", "2", "1"):
        monkeypatch.setenv("OWN_RATE", value)
        found.append(of_text(text))
    monkeypatch.delenv("OWN_RATE")
    assert found[0] == found[2] != found[1]
    assert of_text(text) not in found
    assert found[0].hidden == ()


def test_a_variable_that_is_only_set_does_not_count(monkeypatch) -> None:
    text = 'import os\ndef rule(): os.environ["OWN_RATE"] = "1"'
    monkeypatch.delenv("OWN_RATE", raising=False)
    first = of_text(text)
    monkeypatch.setenv("OWN_RATE", "1")
    assert of_text(text) == first


HIDDEN = {
    "import os\ndef rule(k): return os.environ[k]": (
        "an environment variable whose name is computed is read by rule and is not part of the key"
    ),
    "import os\ndef rule(): return dict(os.environ)": (
        "an environment variable whose name is computed is read by rule and is not part of the key"
    ),
    "def rule(): return open('weights').read()": (
        "a file is read by rule and is not part of the key"
    ),
    "import numpy as np\ndef rule(p): return np.load(p)": (
        "a file is read by rule and is not part of the key"
    ),
    "def rule(p): return p.read_text()": "a file is read by rule and is not part of the key",
    "def rule(k): return globals()[k]": (
        "what globals finds is read by rule and is not part of the key"
    ),
    'import os\nN = "OWN"\ndef rule(): return os.environ[N + "_RATE"]': (
        "an environment variable whose name is computed is read by rule and is not part of the key"
    ),
    'import os\nN = "OWN"\ndef rule(): return os.getenv(f"{N}_RATE")': (
        "an environment variable whose name is computed is read by rule and is not part of the key"
    ),
    "import os\ndef rule(): return os.path.expandvars('$HOME')": (
        "what os.path.expandvars finds is read by rule and is not part of the key"
    ),
    "def rule(p): return p.open('rb').read()": (
        "a file is read by rule and is not part of the key"
    ),
    "import gzip\ndef rule(p): return gzip.open(p)": (
        "a file is read by rule and is not part of the key"
    ),
    "from glob import glob\ndef rule(): return glob('*')": (
        "a file is read by rule and is not part of the key"
    ),
    "def rule(): return open('w').read()": "a file is read by rule and is not part of the key",
    "import importlib\ndef rule(): return importlib.import_module('.low', 'own')": (
        "what importlib.import_module finds is read by rule and is not part of the key"
    ),
    "import os\ndef rule(): return os.system('date')": (
        "what os.system answers is read by rule and is not part of the key"
    ),
    "def rule(): return rule.__globals__['K']": (
        "what __globals__ holds is read by rule and is not part of the key"
    ),
    "class C:\n    a: int\ndef rule(): return C.__annotations__": (
        "what __annotations__ holds is read by rule and is not part of the key"
    ),
    "import sys\ndef rule(): return sys._getframe()": (
        "what sys._getframe finds is read by rule and is not part of the key"
    ),
    "import threading\nclass T(threading.Thread): k = 1\nK = T()\ndef rule(): return K.k": (
        "K (T) is read by rule and is not part of the key"
    ),
    "import subprocess\ndef rule(): return subprocess.run(['date'])": (
        "what subprocess.run answers is read by rule and is not part of the key"
    ),
    "K = (k for k in range(3))\nclass Net:\n    def step(self): return next(K)\n"
    "def rule(): return Net().step()": (
        "K (generator) is read by Net.step and is not part of the key"
    ),
}


@pytest.mark.parametrize(("text", "told"), HIDDEN.items())
def test_what_cannot_be_seen_is_named(text, told) -> None:
    assert of_text(text).hidden == (told,)


def test_a_file_that_is_only_written_is_not_named() -> None:
    assert of_text("def rule(p): open(p, 'w').write('')").hidden == ()
    assert of_text("def rule(p): p.open('a').write('')").hidden == ()


def test_an_open_file_within_an_object_is_named_by_its_place(tmp_path) -> None:
    with (tmp_path / "log").open("w") as file:
        found = content_of({"net": SimpleNamespace(log=file)}, "module")
    assert found.hidden == (
        "module.net.log (TextIOWrapper) is held by module and is not part of the key",
    )


# Time and depth.


def steps(value, monkeypatch):
    """How many objects are visited."""
    count = 0
    new = content_module._Walk._parts

    def counted(self, part):
        nonlocal count
        count += 1
        return new(self, part)

    monkeypatch.setattr(content_module._Walk, "_parts", counted)
    content(value)
    monkeypatch.undo()
    return count


def test_work_grows_with_the_size_of_what_is_shared_not_with_the_paths(monkeypatch) -> None:
    def shared(depth):
        value = [0]
        for _ in range(depth):
            value = [value, value]
        return value

    assert steps(shared(200), monkeypatch) == 401
    assert steps(shared(400), monkeypatch) == 801


def test_a_long_chain_and_a_cycle_end() -> None:
    chain = None
    for number in range(20_000):
        chain = [number, chain]
    first = content(chain)
    chain[0] = -1
    assert content(chain) != first
    cycle = SimpleNamespace(inner=[], rate=1)
    cycle.inner.append(cycle)
    again = SimpleNamespace(inner=[], rate=1)
    again.inner.append(again)
    assert content(cycle) == content(again)
    again.rate = 2
    assert content(cycle) != content(again)


class Member:
    def __init__(self):
        self.others = set()


def test_sets_that_hold_themselves_end() -> None:
    def ring(size):
        members = [Member() for _ in range(size)]
        for each in members:
            each.others |= set(members)
        return members[0]

    assert content(ring(3)) == content(ring(3)) != content(ring(2))


def test_a_huge_array_counts_by_its_content_and_an_expanded_one_by_one_of_it() -> None:
    large = np.zeros(20_000_000, dtype=np.uint8)
    first = content(large)
    large[-1] = 1
    assert content(large) != first
    wide = torch.tensor([1.0]).expand(10**12)
    assert content(wide) != content(torch.tensor([2.0]).expand(10**12))
    assert content(np.broadcast_to(np.float32(1), 10**12)) != content(
        np.broadcast_to(np.float32(2), 10**12)
    )
