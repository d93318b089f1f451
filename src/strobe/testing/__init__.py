"""For those who write their own sinks: the contract that a sink must keep, as tests.

    class TestMySink(strobe.testing.SinkContract):
        def make_sink(self, where): return MySink(…)
        def visible(self, where): return [(1, "one"), …]

Run it with pytest, or with `check_contract`: nothing here imports pytest.
"""

from strobe.testing.contract import SinkContract, check_contract

__all__ = ["SinkContract", "check_contract"]
