"""The papers of the methods, and which strategy comes from which of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from fedlight import __version__, aggregators, arrivals, channel, local_optimizers
from fedlight._support.strategy import Strategy, arguments
from fedlight.aggregators.staleness import DelayAdaptive


class Paper(NamedTuple):
    """A paper; `venue` is empty for a preprint.

    Attributes:
        authors: In BibTeX's form.
        title: The title, with braces around capitals that stay.
        venue: The proceedings or the journal.
        year: The year of the venue.
        url: Where it can be read.
    """

    authors: str
    title: str
    venue: str
    year: int
    url: str

    def bibtex(self, key: str) -> str:
        """Return the entry of this key."""
        kind, place = "inproceedings", "booktitle"
        if not self.venue:
            kind = "misc"
        elif self.venue.startswith("Journal"):
            kind, place = "article", "journal"
        fields = {"author": self.authors, "title": self.title, place: self.venue}
        fields |= {"year": str(self.year), "url": self.url}
        lines = [f"  {name} = {{{value}}}," for name, value in fields.items() if value]
        return "\n".join([f"@{kind}{{{key},", *lines, "}"])


_NEURIPS = "Advances in Neural Information Processing Systems"
_ICML = "International Conference on Machine Learning"
_ICLR = "International Conference on Learning Representations"
_AISTATS = "International Conference on Artificial Intelligence and Statistics"
_MLSYS = "Proceedings of Machine Learning and Systems"

PAPERS = {
    "fedlight": Paper(
        "{The fedlight authors}",
        "fedlight: asynchronous federated learning for {LightningModules}, version "
        f"{__version__}",
        "",
        2026,
        "",
    ),
    "mcmahan2017communication": Paper(
        "McMahan, H. Brendan and Moore, Eider and Ramage, Daniel and Hampson, Seth and "
        'Ag{\\"u}era y Arcas, Blaise',
        "Communication-Efficient Learning of Deep Networks from Decentralized Data",
        _AISTATS,
        2017,
        "https://arxiv.org/abs/1602.05629",
    ),
    "reddi2021adaptive": Paper(
        "Reddi, Sashank J. and Charles, Zachary and Zaheer, Manzil and Garrett, Zachary and Rush, "
        "Keith and Kone{\\v{c}}n{\\'y}, Jakub and Kumar, Sanjiv and McMahan, H. Brendan",
        "Adaptive Federated Optimization",
        _ICLR,
        2021,
        "https://arxiv.org/abs/2003.00295",
    ),
    "li2020federated": Paper(
        "Li, Tian and Sahu, Anit Kumar and Zaheer, Manzil and Sanjabi, Maziar and Talwalkar, Ameet "
        "and Smith, Virginia",
        "Federated Optimization in Heterogeneous Networks",
        _MLSYS,
        2020,
        "https://arxiv.org/abs/1812.06127",
    ),
    "karimireddy2020scaffold": Paper(
        "Karimireddy, Sai Praneeth and Kale, Satyen and Mohri, Mehryar and Reddi, Sashank J. and "
        "Stich, Sebastian U. and Suresh, Ananda Theertha",
        "{SCAFFOLD}: Stochastic Controlled Averaging for Federated Learning",
        _ICML,
        2020,
        "https://arxiv.org/abs/1910.06378",
    ),
    "wang2020tackling": Paper(
        "Wang, Jianyu and Liu, Qinghua and Liang, Hao and Joshi, Gauri and Poor, H. Vincent",
        "Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization",
        _NEURIPS,
        2020,
        "https://arxiv.org/abs/2007.07481",
    ),
    "acar2021federated": Paper(
        "Acar, Durmus Alp Emre and Zhao, Yue and Matas Navarro, Ramon and Mattina, Matthew and "
        "Whatmough, Paul N. and Saligrama, Venkatesh",
        "Federated Learning Based on Dynamic Regularization",
        _ICLR,
        2021,
        "https://arxiv.org/abs/2111.04263",
    ),
    "foret2021sharpness": Paper(
        "Foret, Pierre and Kleiner, Ariel and Mobahi, Hossein and Neyshabur, Behnam",
        "Sharpness-Aware Minimization for Efficiently Improving Generalization",
        _ICLR,
        2021,
        "https://arxiv.org/abs/2010.01412",
    ),
    "qu2022generalized": Paper(
        "Qu, Zhe and Li, Xingyu and Duan, Rui and Liu, Yao and Tang, Bo and Lu, Zhuo",
        "Generalized Federated Learning via Sharpness Aware Minimization",
        _ICML,
        2022,
        "https://arxiv.org/abs/2206.02618",
    ),
    "kingma2015adam": Paper(
        "Kingma, Diederik P. and Ba, Jimmy",
        "Adam: A Method for Stochastic Optimization",
        _ICLR,
        2015,
        "https://arxiv.org/abs/1412.6980",
    ),
    "douillard2023diloco": Paper(
        "Douillard, Arthur and Feng, Qixuan and Rusu, Andrei A. and Chhaparia, Rachita and "
        "Donchev, Yani and Kuncoro, Adhiguna and Ranzato, Marc'Aurelio and Szlam, Arthur and Shen, "
        "Jiajun",
        "{DiLoCo}: Distributed Low-Communication Training of Language Models",
        "",
        2023,
        "https://arxiv.org/abs/2311.08105",
    ),
    "maranjyan2026ringleader": Paper(
        "Maranjyan, Artavazd and Richt{\\'a}rik, Peter",
        "{Ringleader ASGD}: The First Asynchronous {SGD} with Optimal Time Complexity under Data "
        "Heterogeneity",
        _ICLR,
        2026,
        "https://arxiv.org/abs/2509.22860",
    ),
    "maranjyan2025mindflayer": Paper(
        "Maranjyan, Artavazd and Shaikh Omar, Omar and Richt{\\'a}rik, Peter",
        "{MindFlayer SGD}: Efficient Parallel {SGD} in the Presence of Heterogeneous and Random "
        "Worker Compute Times",
        "Conference on Uncertainty in Artificial Intelligence",
        2025,
        "https://arxiv.org/abs/2410.04285",
    ),
    "arjevani2020tight": Paper(
        "Arjevani, Yossi and Shamir, Ohad and Srebro, Nathan",
        "A Tight Convergence Analysis for Stochastic Gradient Descent with Delayed Updates",
        "International Conference on Algorithmic Learning Theory",
        2020,
        "https://arxiv.org/abs/1806.10188",
    ),
    "yu2024momentum": Paper(
        "Yu, Tao and Song, Congzheng and Wang, Jianyu and Chitnis, Mona",
        "Momentum Approximation in Asynchronous Private Federated Learning",
        "",
        2024,
        "https://arxiv.org/abs/2402.09247",
    ),
    "liu2024asynchronous": Paper(
        "Liu, Bo and Chhaparia, Rachita and Douillard, Arthur and Kale, Satyen and Rusu, Andrei A. "
        "and Shen, Jiajun and Szlam, Arthur and Ranzato, Marc'Aurelio",
        "Asynchronous Local-{SGD} Training for Language Modeling",
        "",
        2024,
        "https://arxiv.org/abs/2401.09135",
    ),
    "ajanthan2025momentum": Paper(
        "Ajanthan, Thalaiyasingam and Ramasinghe, Sameera and Avraham, Gil and Zuo, Yan and Long, "
        "Alexander",
        "Momentum Look-Ahead for Asynchronous Distributed Low-Communication Training",
        "",
        2025,
        "https://openreview.net/forum?id=4O8nzTkHPI",
    ),
    "heloco2026": Paper(
        "{Authors of arXiv:2606.00271}",
        "{HeLoCo}",
        "",
        2026,
        "https://arxiv.org/abs/2606.00271",
    ),
    "cgad2026": Paper(
        "{Authors of arXiv:2605.09126}",
        "{CGAD}",
        "",
        2026,
        "https://arxiv.org/abs/2605.09126",
    ),
    "ringmasterlmo2026": Paper(
        "{Authors of arXiv:2605.18174}",
        "{Ringmaster LMO}",
        "",
        2026,
        "https://arxiv.org/abs/2605.18174",
    ),
    "loshchilov2019decoupled": Paper(
        "Loshchilov, Ilya and Hutter, Frank",
        "Decoupled Weight Decay Regularization",
        _ICLR,
        2019,
        "https://arxiv.org/abs/1711.05101",
    ),
    "jhunjhunwala2022fedvarp": Paper(
        "Jhunjhunwala, Divyansh and Sharma, Pranay and Nagarkatti, Aushim and Joshi, Gauri",
        "{FedVARP}: Tackling the Variance Due to Partial Client Participation in Federated "
        "Learning",
        "Conference on Uncertainty in Artificial Intelligence",
        2022,
        "https://arxiv.org/abs/2207.14130",
    ),
    "rodio2024fedstale": Paper(
        "Rodio, Angelo and Neglia, Giovanni",
        "{FedStale}: Leveraging Stale Client Updates in Federated Learning",
        "European Conference on Artificial Intelligence",
        2024,
        "https://arxiv.org/abs/2405.04171",
    ),
    "gu2021fast": Paper(
        "Gu, Xinran and Huang, Kaixuan and Zhang, Jingzhao and Huang, Longbo",
        "Fast Federated Learning in the Presence of Arbitrary Device Unavailability",
        _NEURIPS,
        2021,
        "https://arxiv.org/abs/2106.04159",
    ),
    "chang2025mitigating": Paper(
        "Chang, Xiangyu and Yao, Manyi and Krishnamurthy, Srikanth V. and Shelton, Christian R. "
        "and Chakraborty, Anirban and Swami, Ananthram and Oymak, Samet and Roy-Chowdhury, Amit",
        "Mitigating Participation Imbalance Bias in Asynchronous Federated Learning",
        "",
        2025,
        "https://arxiv.org/abs/2511.19066",
    ),
    "yang2022anarchic": Paper(
        "Yang, Haibo and Zhang, Xin and Khanduri, Prashant and Liu, Jia",
        "Anarchic Federated Learning",
        _ICML,
        2022,
        "https://arxiv.org/abs/2108.09875",
    ),
    "xie2019asynchronous": Paper(
        "Xie, Cong and Koyejo, Oluwasanmi and Gupta, Indranil",
        "Asynchronous Federated Optimization",
        "",
        2019,
        "https://arxiv.org/abs/1903.03934",
    ),
    "mcmahan2018learning": Paper(
        "McMahan, H. Brendan and Ramage, Daniel and Talwar, Kunal and Zhang, Li",
        "Learning Differentially Private Recurrent Language Models",
        _ICLR,
        2018,
        "https://arxiv.org/abs/1710.06963",
    ),
    "abadi2016deep": Paper(
        "Abadi, Martin and Chu, Andy and Goodfellow, Ian and McMahan, H. Brendan and Mironov, "
        "Ilya and Talwar, Kunal and Zhang, Li",
        "Deep Learning with Differential Privacy",
        "Proceedings of the 2016 {ACM} {SIGSAC} Conference on Computer and Communications Security",
        2016,
        "https://arxiv.org/abs/1607.00133",
    ),
    "nguyen2022federated": Paper(
        "Nguyen, John and Malik, Kshitiz and Zhan, Hongyuan and Yousefpour, Ashkan and Rabbat, "
        "Michael and Malek, Mani and Huba, Dzmitry",
        "Federated Learning with Buffered Asynchronous Aggregation",
        _AISTATS,
        2022,
        "https://arxiv.org/abs/2106.06639",
    ),
    "koloskova2022sharper": Paper(
        "Koloskova, Anastasia and Stich, Sebastian U. and Jaggi, Martin",
        "Sharper Convergence Guarantees for Asynchronous {SGD} for Distributed and Federated "
        "Learning",
        _NEURIPS,
        2022,
        "https://arxiv.org/abs/2206.08307",
    ),
    "mishchenko2022asynchronous": Paper(
        "Mishchenko, Konstantin and Bach, Francis and Even, Mathieu and Woodworth, Blake",
        "Asynchronous {SGD} Beats Minibatch {SGD} Under Arbitrary Delays",
        _NEURIPS,
        2022,
        "https://arxiv.org/abs/2206.07638",
    ),
    "zheng2017asynchronous": Paper(
        "Zheng, Shuxin and Meng, Qi and Wang, Taifeng and Chen, Wei and Yu, Nenghai and Ma, "
        "Zhi-Ming and Liu, Tie-Yan",
        "Asynchronous Stochastic Gradient Descent with Delay Compensation",
        _ICML,
        2017,
        "https://arxiv.org/abs/1609.08326",
    ),
    "maranjyan2025ringmaster": Paper(
        "Maranjyan, Artavazd and Tyurin, Alexander and Richt{\\'a}rik, Peter",
        "{Ringmaster ASGD}: The First Asynchronous {SGD} with Optimal Time Complexity",
        _ICML,
        2025,
        "https://arxiv.org/abs/2501.16168",
    ),
    "tyurin2023optimal": Paper(
        "Tyurin, Alexander and Richt{\\'a}rik, Peter",
        "Optimal Time Complexities of Parallel Stochastic Optimization Methods Under a Fixed "
        "Computation Model",
        _NEURIPS,
        2023,
        "https://arxiv.org/abs/2305.12387",
    ),
    "leconte2024queuing": Paper(
        "Leconte, Louis and Jonckheere, Matthieu and Samsonov, Sergey and Moulines, Eric",
        "Queuing Dynamics of Asynchronous Federated Learning",
        _AISTATS,
        2024,
        "https://arxiv.org/abs/2405.00017",
    ),
    "wang2024tackling": Paper(
        "Wang, Yujia and Cao, Yuanpu and Wu, Jingcheng and Chen, Ruoyu and Chen, Jinghui",
        "Tackling the Data Heterogeneity in Asynchronous Federated Learning with Cached Update "
        "Calibration",
        _ICLR,
        2024,
        "https://openreview.net/forum?id=4aywmeb97I",
    ),
    "wang2024fadas": Paper(
        "Wang, Yujia and Wang, Shiqiang and Lu, Songtao and Chen, Jinghui",
        "{FADAS}: Towards Federated Adaptive Asynchronous Optimization",
        _ICML,
        2024,
        "https://arxiv.org/abs/2407.18365",
    ),
    "iakovidou2024asynchronous": Paper(
        "Iakovidou, Charikleia and Kim, Kibaek",
        "Asynchronous Federated Stochastic Optimization for Heterogeneous Objectives Under "
        "Arbitrary Delays",
        "",
        2024,
        "https://arxiv.org/abs/2405.10123",
    ),
    "fraboni2023general": Paper(
        "Fraboni, Yann and Vidal, Richard and Kameni, Laetitia and Lorenzi, Marco",
        "A General Theory for Federated Optimization with Asynchronous and Heterogeneous Clients "
        "Updates",
        "Journal of Machine Learning Research",
        2023,
        "https://arxiv.org/abs/2206.10189",
    ),
    "avdiukhin2021federated": Paper(
        "Avdiukhin, Dmitrii and Kasiviswanathan, Shiva",
        "Federated Learning under Arbitrary Communication Patterns",
        _ICML,
        2021,
        "https://proceedings.mlr.press/v139/avdiukhin21a.html",
    ),
    "chai2021fedat": Paper(
        "Chai, Zheng and Chen, Yujing and Anwar, Ali and Zhao, Liang and Cheng, Yue and Rangwala, "
        "Huzefa",
        "{FedAT}: A High-Performance and Communication-Efficient Federated Learning System with "
        "Asynchronous Tiers",
        "International Conference for High Performance Computing, Networking, Storage and Analysis",
        2021,
        "https://arxiv.org/abs/2010.05958",
    ),
    "li2024fedcompass": Paper(
        "Li, Zilinghan and Chaturvedi, Pranshu and He, Shilan and Chen, Han and Singh, Gagandeep "
        "and Kindratenko, Volodymyr and Huerta, E. A. and Kim, Kibaek and Madduri, Ravi",
        "{FedCompass}: Efficient Cross-Silo Federated Learning on Heterogeneous Client Devices "
        "Using a Computing Power-Aware Scheduler",
        _ICLR,
        2024,
        "https://arxiv.org/abs/2309.14675",
    ),
    "liu2024fedasmu": Paper(
        "Liu, Ji and Jia, Juncheng and Che, Tianshi and Huo, Chao and Ren, Jiaxiang and Zhou, Yang "
        "and Dai, Huaiyu and Dou, Dejing",
        "{FedASMU}: Efficient Asynchronous Federated Learning with Dynamic Staleness-Aware Model "
        "Update",
        "AAAI Conference on Artificial Intelligence",
        2024,
        "https://arxiv.org/abs/2312.05770",
    ),
    "zakerinia2024communication": Paper(
        "Zakerinia, Hossein and Talaei, Shayan and Nadiradze, Giorgi and Alistarh, Dan",
        "Communication-Efficient Federated Learning With Data and Client Heterogeneity",
        _AISTATS,
        2024,
        "https://arxiv.org/abs/2206.10032",
    ),
    "leconte2023favas": Paper(
        "Leconte, Louis and Nguyen, Van Minh and Moulines, Eric",
        "{FAVAS}: Federated {AVeraging} with {ASynchronous} clients",
        "",
        2023,
        "https://arxiv.org/abs/2305.16099",
    ),
    "bonawitz2019towards": Paper(
        "Bonawitz, Keith and others",
        "Towards Federated Learning at Scale: System Design",
        _MLSYS,
        2019,
        "https://arxiv.org/abs/1902.01046",
    ),
    "alistarh2017qsgd": Paper(
        "Alistarh, Dan and Grubic, Demjan and Li, Jerry and Tomioka, Ryota and Vojnovic, Milan",
        "{QSGD}: Communication-Efficient {SGD} via Gradient Quantization and Encoding",
        _NEURIPS,
        2017,
        "https://arxiv.org/abs/1610.02132",
    ),
    "stich2018sparsified": Paper(
        "Stich, Sebastian U. and Cordonnier, Jean-Baptiste and Jaggi, Martin",
        "Sparsified {SGD} with Memory",
        _NEURIPS,
        2018,
        "https://arxiv.org/abs/1809.07599",
    ),
    "karimireddy2019error": Paper(
        "Karimireddy, Sai Praneeth and Rebjock, Quentin and Stich, Sebastian U. and Jaggi, Martin",
        "Error Feedback Fixes {SignSGD} and other Gradient Compression Schemes",
        _ICML,
        2019,
        "https://arxiv.org/abs/1901.09847",
    ),
    "kim2025halos": Paper(
        "Kim, Geon-Woo and Li, Junbo and Gandham, Shashidhar and Baldonado, Omar and Gangidi, "
        "Adithya and Balaji, Pavan and Wang, Zhangyang and Akella, Aditya",
        "{HALoS}: Hierarchical Asynchronous Local {SGD} over Slow Networks for Geo-Distributed "
        "Large Language Model Training",
        _ICML,
        2025,
        "https://arxiv.org/abs/2506.04531",
    ),
    "sarfi2025communication": Paper(
        "Sarfi, Amir and Th{\\'e}rien, Benjamin and Lidin, Joel and Belilovsky, Eugene",
        "Communication Efficient {LLM} Pre-training with {SparseLoCo}",
        "",
        2025,
        "https://arxiv.org/abs/2508.15706",
    ),
    "cho2020client": Paper(
        "Cho, Yae Jee and Wang, Jianyu and Joshi, Gauri",
        "Client Selection in Federated Learning: Convergence Analysis and Power-of-Choice "
        "Selection Strategies",
        "",
        2020,
        "https://arxiv.org/abs/2010.01243",
    ),
    "lai2021oort": Paper(
        "Lai, Fan and Zhu, Xiangfeng and Madhyastha, Harsha V. and Chowdhury, Mosharaf",
        "{Oort}: Efficient Federated Learning via Guided Participant Selection",
        "{USENIX} Symposium on Operating Systems Design and Implementation",
        2021,
        "https://arxiv.org/abs/2010.06081",
    ),
    "jiang2022pisces": Paper(
        "Jiang, Zhifeng and Wang, Wei and Li, Baochun and Li, Bo",
        "{Pisces}: Efficient Federated Learning via Guided Asynchronous Training",
        "{ACM} Symposium on Cloud Computing",
        2022,
        "https://arxiv.org/abs/2206.09264",
    ),
}
"""The papers by their keys, in the order in which they are cited."""

OF_STRATEGY: Mapping[type, tuple[str, ...]] = {
    aggregators.FedAvg: ("mcmahan2017communication",),
    aggregators.FedBuff: ("nguyen2022federated",),
    aggregators.PrivateSum: ("mcmahan2018learning",),
    aggregators.FedAsync: ("xie2019asynchronous",),
    aggregators.AFACD: ("yang2022anarchic",),
    aggregators.AFACS: ("yang2022anarchic",),
    aggregators.MIFA: ("gu2021fast",),
    aggregators.FedVARP: ("jhunjhunwala2022fedvarp",),
    aggregators.CA2FL: ("wang2024tackling",),
    aggregators.FADAS: ("wang2024fadas",),
    aggregators.AREA: ("iakovidou2024asynchronous",),
    aggregators.DCASGD: ("zheng2017asynchronous",),
    aggregators.Ringmaster: ("maranjyan2025ringmaster",),
    aggregators.DelayedNesterov: ("liu2024asynchronous",),
    aggregators.LookAhead: ("ajanthan2025momentum",),
    aggregators.HeLoCo: ("heloco2026",),
    aggregators.Ringleader: ("maranjyan2026ringleader",),
    aggregators.MindFlayer: ("maranjyan2025mindflayer",),
    aggregators.FedBuffMA: ("yu2024momentum", "nguyen2022federated"),
    aggregators.HALoS: ("kim2025halos",),
    aggregators.Rennala: ("tyurin2023optimal",),
    aggregators.Malenia: ("tyurin2023optimal",),
    aggregators.GeneralizedAsyncSGD: ("leconte2024queuing",),
    aggregators.AsyncFedAvg: ("fraboni2023general",),
    aggregators.FedFix: ("fraboni2023general",),
    aggregators.AsyncCommSGD: ("avdiukhin2021federated",),
    aggregators.FedNova: ("wang2020tackling",),
    aggregators.FedDynServer: ("acar2021federated",),
    aggregators.QuAFL: ("zakerinia2024communication",),
    aggregators.FAVAS: ("leconte2023favas",),
    aggregators.FedAT: ("chai2021fedat",),
    aggregators.FedCompass: ("li2024fedcompass",),
    aggregators.FedASMU: ("liu2024fedasmu",),
    local_optimizers.FreshModel: ("liu2024fedasmu",),
    arrivals.CompassArrivals: ("li2024fedcompass",),
    arrivals.RefreshedTasks: ("liu2024fedasmu",),
    DelayAdaptive: ("koloskova2022sharper", "mishchenko2022asynchronous"),
    local_optimizers.LocalAdamW: ("loshchilov2019decoupled",),
    local_optimizers.LocalAdam: ("kingma2015adam",),
    local_optimizers.FedProx: ("li2020federated",),
    local_optimizers.Scaffold: ("karimireddy2020scaffold",),
    local_optimizers.FedDyn: ("acar2021federated",),
    local_optimizers.SAM: ("foret2021sharpness", "qu2022generalized"),
    arrivals.UniformArrivals: ("yang2022anarchic",),
    arrivals.BiasedArrivals: ("yang2022anarchic",),
    arrivals.TrialRounds: ("maranjyan2025mindflayer",),
    arrivals.ConstantStaleness: ("arjevani2020tight",),
    arrivals.Oort: ("lai2021oort",),
    arrivals.Pisces: ("jiang2022pisces",),
    arrivals.PowerOfChoice: ("cho2020client",),
    arrivals.CommunicationPattern: ("avdiukhin2021federated",),
    channel.QSGD: ("alistarh2017qsgd",),
    channel.TopK: ("stich2018sparsified",),
    channel.GaussianNoise: ("abadi2016deep",),
    channel.RandomK: ("stich2018sparsified",),
    channel.ErrorFeedback: ("stich2018sparsified", "karimireddy2019error"),
    arrivals.Regions: ("kim2025halos",),
    arrivals.StepsBySpeed: ("liu2024asynchronous",),
    arrivals.SharedStream: ("liu2024asynchronous",),
    arrivals.LeastVisitedShards: ("liu2024asynchronous",),
}
"""The papers of strategies, by their classes; a class of one's own has those of its base."""


PARTS = ("arrivals", "aggregator", "local_optimizer", "channel")


def papers_of(given: Mapping[str, object]) -> tuple[str, ...]:
    """Return the keys of the papers of a trainer's arguments, and of those within, each once."""
    found = {key for part in PARTS for key in _keys(given.get(part))} | set(_of_islands(given))
    return tuple(key for key in PAPERS if key in found)


def _keys(value: object) -> Iterator[str]:
    """The keys of the papers of a value: a strategy, or a list or a mapping of them."""
    within = list(value.values()) if isinstance(value, Mapping) else value
    if isinstance(within, list | tuple) and within and isinstance(within[0], Strategy):
        for each in within:
            yield from _keys(each)
    if not isinstance(value, Strategy):
        return
    given = arguments(value)
    # A buffer of one is asynchronous SGD, which is not that paper's.
    if not (isinstance(value, aggregators.FedBuff) and given["buffer_size"] == 1):
        yield from next(
            (OF_STRATEGY[each] for each in type(value).__mro__ if each in OF_STRATEGY), ()
        )
    yield from _of_setting(value, given)
    for each in given.values():
        yield from _keys(each)


def _of_islands(given: Mapping[str, object]) -> Iterator[str]:
    """The keys of the papers that put AdamW on the clients and an optimizer on the server."""
    aggregator, local = given.get("aggregator"), given.get("local_optimizer")
    if not isinstance(local, local_optimizers.LocalAdamW) or not isinstance(aggregator, Strategy):
        return
    own = arguments(aggregator)
    if own.get("server_optimizer") is None:
        return
    if isinstance(aggregator, aggregators.FedAvg):
        yield "douillard2023diloco"
    elif isinstance(aggregator, aggregators.FedBuff) and own["buffer_size"] == 1:
        yield "cgad2026"


def _of_setting(value: Strategy, given: Mapping[str, object]) -> Iterator[str]:
    """The keys of the papers of a strategy with these arguments, in addition to its class's."""
    if isinstance(value, aggregators.FedAvg) and given["server_optimizer"] is not None:
        yield "reddi2021adaptive"
    if isinstance(value, aggregators.Ringmaster) and given["server_optimizer"] is not None:
        yield "ringmasterlmo2026"
    if type(value) is aggregators.MIFA and given["buffer_size"] == 1:
        yield "chang2025mitigating"
    if type(value) is aggregators.FedVARP and given["beta"] != 1:
        yield "rodio2024fedstale"
    if isinstance(value, arrivals.SynchronousArrivals) and (
        given["over_select"] or given["timeout"]
    ):
        yield "bonawitz2019towards"
    if isinstance(value, arrivals.SynchronousArrivals) and given["grace"] is not None:
        yield "liu2024asynchronous"
    if isinstance(value, channel.ErrorFeedback) and given["decay"] != 1:
        yield "sarfi2025communication"


def bibtex(keys: Iterable[str]) -> str:
    """Return the entries of fedlight and of these keys as one text, each once."""
    cited = {"fedlight", *keys}
    return "\n\n".join(paper.bibtex(key) for key, paper in PAPERS.items() if key in cited)
