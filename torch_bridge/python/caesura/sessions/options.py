# SPDX-License-Identifier: Apache-2.0
"""Options of sessions and runs, by the names that onnxruntime gives them.

Supported options take effect. An unsupported option raises NotImplementedError when the session is made if ignoring it
would change results or leave a file unwritten. Other unsupported options, which affect only time or log text, warn once
for each name. A misspelt name raises AttributeError.
"""

import enum
import functools
import os
import warnings
from typing import Any

from caesura import _core
from caesura.typing import Path

CustomOps = _core.CustomOps
OptionSet = _core.OptionSet


class GraphOptimizationLevel(enum.IntEnum):
    """The extent to which a session rewrites the model; the values are onnxruntime's.

    ORT_DISABLE_ALL keeps the nodes as they are. ORT_ENABLE_BASIC folds constants and removes what is redundant. From
    ORT_ENABLE_EXTENDED on nodes are fused, too.

    Example::

        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    """

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(enum.IntEnum):
    """Taken for onnxruntime's sake: nodes run one after another in both modes.

    Example::

        options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    """
    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class ExecutionOrder(enum.IntEnum):
    """Taken for onnxruntime's sake: nodes keep the order of the model where its edges allow.

    Example::

        options.execution_order = onnxruntime.ExecutionOrder.DEFAULT
    """
    DEFAULT = 0
    PRIORITY_BASED = 1
    MEMORY_EFFICIENT = 2


@functools.cache
def warn_once(name: str, why: str) -> None:
    warnings.warn(f"caesura: {name} has no effect: {why}", stacklevel=4)


class _Named:
    """Attributes with defaults, and no others."""

    _DEFAULTS: dict[str, Any] = {}

    def __init__(self) -> None:
        self.__dict__.update(self._DEFAULTS)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self._DEFAULTS:
            raise AttributeError(f"{type(self).__name__} has no option '{name}'; there are {', '.join(self._DEFAULTS)}")
        self.__dict__[name] = value

    def _changed(self, name: str) -> bool:
        return bool(self.__dict__[name] != self._DEFAULTS[name])


class SessionOptions(_Named):
    """Options of an InferenceSession, under onnxruntime's names.

    These have an effect: intra_op_num_threads (0: CAESURA_NUM_THREADS, or as many as OpenMP would take),
    graph_optimization_level, enable_mem_reuse, enable_profiling and profile_file_prefix
    (InferenceSession.end_profiling()). Options without an effect warn once and say why. Runs are deterministic for one
    number of threads, with or without use_deterministic_compute.

    Attributes:
        custom_ops: CustomOps: ops from shared libraries, and options of single nodes, of op types and of model ops.

    Raises:
        AttributeError: an option of this name does not exist.
        NotImplementedError: when a session is made with an option that caesura refuses, such as
            optimized_model_filepath.

    Example::

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.register_custom_ops_library("libmine.so")
        options.custom_ops.for_node("detector").update({"device": "CPU"})
        session = onnxruntime.InferenceSession("net.onnx", options)
    """

    intra_op_num_threads: int
    inter_op_num_threads: int
    execution_mode: ExecutionMode
    execution_order: ExecutionOrder
    graph_optimization_level: GraphOptimizationLevel
    enable_mem_reuse: bool
    enable_mem_pattern: bool
    enable_cpu_mem_arena: bool
    use_deterministic_compute: bool
    use_per_session_threads: bool
    logid: str
    log_severity_level: int
    log_verbosity_level: int
    enable_profiling: bool
    profile_file_prefix: str
    optimized_model_filepath: str
    custom_ops: CustomOps
    _entries: dict[str, str]

    _DEFAULTS = {
        "intra_op_num_threads": 0, "inter_op_num_threads": 0, "execution_mode": ExecutionMode.ORT_SEQUENTIAL,
        "execution_order": ExecutionOrder.DEFAULT, "graph_optimization_level": GraphOptimizationLevel.ORT_ENABLE_ALL,
        "enable_mem_reuse": True, "enable_mem_pattern": True, "enable_cpu_mem_arena": True,
        "use_deterministic_compute": False, "use_per_session_threads": True, "logid": "", "log_severity_level": -1,
        "log_verbosity_level": 0, "enable_profiling": False, "profile_file_prefix": "onnxruntime_profile_",
        "optimized_model_filepath": "",
    }
    _NO_EFFECT = {
        "inter_op_num_threads": "nodes run one after another",
        "execution_mode": "nodes run one after another",
        "execution_order": "nodes keep the order of the model where its edges allow",
        "enable_mem_pattern": "memory is planned for each set of shapes",
        "enable_cpu_mem_arena": "memory is planned for each set of shapes",
        "use_per_session_threads": "kernels share OpenMP's threads",
        "logid": "the log has one line a message, on stderr",
        "log_severity_level": "CAESURA_VERBOSE sets what is logged",
        "log_verbosity_level": "CAESURA_VERBOSE sets what is logged",
    }
    _REFUSED = {
        "optimized_model_filepath": "the model is not written after its passes",
    }

    def __init__(self) -> None:
        super().__init__()
        self.__dict__.update(_entries={}, custom_ops=_core.CustomOps())

    def register_custom_ops_library(self, path: Path) -> None:
        """Adds the ops and model runtimes of a plug-in (core/plugin/caesura_op.h).

        Raises:
            FileNotFoundError: there is no such library.
            NotImplementedError: the library is one of onnxruntime's, which speaks another C interface.
        """
        self.custom_ops.add_library(os.fspath(path))

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Keeps an entry. None of onnxruntime's keys has an effect here; each warns once."""
        self._entries[str(key)] = str(value)

    def get_session_config_entry(self, key: str) -> str:
        """Returns an entry that was added."""
        return self._entries[key]

    def add_free_dimension_override_by_name(self, name: str, value: int) -> None:
        """Has no effect, and warns once: each run is planned for its own shapes."""
        warn_once("add_free_dimension_override_by_name", "each run is planned for the shapes that it is given")

    def add_free_dimension_override_by_denotation(self, name: str, value: int) -> None:
        """Has no effect, and warns once: each run is planned for its own shapes."""
        warn_once("add_free_dimension_override_by_denotation", "each run is planned for the shapes that it is given")

    def _settings(self) -> dict[str, Any]:
        """Returns the settings of the native session; warns and raises for all others."""
        for name, why in self._REFUSED.items():
            if self._changed(name):
                raise NotImplementedError(f"SessionOptions.{name}: {why}")
        for name, why in self._NO_EFFECT.items():
            if self._changed(name) and not (name == "inter_op_num_threads" and self.inter_op_num_threads == 1):
                warn_once(f"SessionOptions.{name}", why)
        for key in self._entries:
            warn_once(f"session config entry '{key}'", "it is not known here")
        return {"threads": int(self.intra_op_num_threads), "optimization": min(int(self.graph_optimization_level), 2),
                "reuse_memory": bool(self.enable_mem_reuse), "profile": bool(self.enable_profiling), "custom_ops": self.custom_ops}


class RunOptions(_core.RunSettings):
    """Options of one run, under onnxruntime's names. Options without an effect warn once and say why.

    Attributes:
        terminate: True, set from any thread, ends the runs that were given these options with RuntimeError, between two
            nodes.
        logid: the name by which observers know the run.
        only_execute_path_to_fetches: always True.

    Raises:
        AttributeError: an option of this name does not exist.

    Example::

        options = onnxruntime.RunOptions()
        threading.Timer(10, setattr, (options, "terminate", True)).start()
        session.run(None, feeds, options)
    """

    _HONOURED = ("terminate", "logid", "only_execute_path_to_fetches")
    _NO_EFFECT = {
        "log_severity_level": "CAESURA_VERBOSE sets what is logged",
        "log_verbosity_level": "CAESURA_VERBOSE sets what is logged",
    }

    def __init__(self) -> None:
        super().__init__()
        self._entries: dict[str, str] = {}
        self.only_execute_path_to_fetches = True

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._NO_EFFECT:
            warn_once(f"RunOptions.{name}", self._NO_EFFECT[name])
        elif name not in (*self._HONOURED, "_entries"):
            raise AttributeError(f"RunOptions has no option '{name}'; there are {', '.join((*self._HONOURED, *self._NO_EFFECT))}")
        super().__setattr__(name, value)

    def add_run_config_entry(self, key: str, value: str) -> None:
        """Keeps an entry. None of onnxruntime's keys has an effect here; each warns once."""
        self._entries[str(key)] = str(value)
        warn_once(f"run config entry '{key}'", "it is not known here")

    def get_run_config_entry(self, key: str) -> str:
        """Returns an entry that was added."""
        return self._entries[key]
