# SPDX-License-Identifier: Apache-2.0
"""Bindings: memory for the inputs and outputs of runs, with the interface of onnxruntime's IOBinding and OrtValue."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Optional

from caesura import _core
from caesura.sessions.values import dtype_number
from caesura.typing import Array, DType

if TYPE_CHECKING:
    from caesura.sessions.inference import InferenceSession

OrtValue = _core.OrtValue


def ortvalue_from_shape_and_type(shape: Sequence[int], element_type: DType, device_type: str = "cpu", device_id: int = 0) -> OrtValue:
    """Makes an OrtValue with a tensor of zeros on the host, for a run's output.

    Args:
        shape: its dims.
        element_type: a NumPy dtype, or ONNX's number of one.
        device_type: "cpu".
        device_id: not used.

    Raises:
        NotImplementedError: another device than the host was asked for.
    """
    if device_type != "cpu":
        raise NotImplementedError(f"memory on {device_type} comes from its own library (OrtValue.from_dlpack takes it), or from "
                                  "ortvalue_from_numpy")
    value: OrtValue = OrtValue._from_shape(list(shape), dtype_number(element_type))  # type: ignore[attr-defined]
    return value


OrtValue.ortvalue_from_shape_and_type = staticmethod(ortvalue_from_shape_and_type)  # type: ignore[attr-defined]


class IOBinding:
    """Inputs and outputs by name, bound once for many runs of one session.

    A binding says where values are; it never holds a result that a later run could write to. It differs from
    onnxruntime's in four ways:

    - Inputs are never copied when they are bound. A run reads the caller's own bytes, so it sees what was written to
      them since. An array that is not dense is refused, where onnxruntime binds a copy.
    - An output that is bound to a device only is fresh memory in each run, of whatever shape comes out. What was handed
      out before stays unchanged. A second run with other shapes just works.
    - Buffers are checked: dtype, rank and known dims when they are bound, the size at run time. Memory that is shared
      with an input or with another output is refused, unless bind_ortvalue_output(..., replaces_input=True) allows it.
    - Threads may share a session, and even a binding with fresh outputs: use the result of run_with_iobinding() then;
      get_outputs() is that of whichever run ended last.

    Args:
        session: the InferenceSession.

    Raises:
        ValueError: from the bind methods, if the session has no such input or output, or a value does not fit.

    Example::

        binding = session.io_binding()
        binding.bind_cpu_input("images", images)
        binding.bind_output("scores")
        session.run_with_iobinding(binding)
        scores = binding.copy_outputs_to_cpu()[0]
    """

    def __init__(self, session: "InferenceSession") -> None:
        self._session = session
        self._binding = _core.Binding(session._session)
        self.run = self._binding.run

    @staticmethod
    def _at(device_type: str, device_id: int, element_type: DType, shape: Sequence[int], buffer_ptr: int) -> OrtValue:
        value: OrtValue = OrtValue._from_pointer(  # type: ignore[attr-defined]
            device_type, device_id, dtype_number(element_type), list(shape), buffer_ptr)
        return value

    def bind_cpu_input(self, name: str, arr_on_cpu: Array) -> None:
        """Binds a NumPy array, or any tensor with DLPack. It is kept alive, and read at run time; strings are copied
        now.
        """
        self._binding.bind_input(name, arr_on_cpu if isinstance(arr_on_cpu, OrtValue) else OrtValue.from_dlpack(arr_on_cpu))

    def bind_input(self, name: str, device_type: str, device_id: int, element_type: DType, shape: Sequence[int],
                   buffer_ptr: int) -> None:
        """Binds bytes at an address. The caller keeps them alive, and has finished writing them when a run begins."""
        value = self._at(device_type, device_id, element_type, shape, buffer_ptr)
        self._binding.bind_input(name, value)

    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None:
        """Binds an OrtValue."""
        self._binding.bind_input(name, ortvalue)

    def bind_output(self, name: str, device_type: str = "cpu", device_id: int = 0,
                    element_type: Optional[DType] = None,
                    shape: Optional[Sequence[int]] = None, buffer_ptr: Optional[int] = None) -> None:
        """Binds an output to the bytes at `buffer_ptr`; without one, to fresh memory on the device in each run."""
        if buffer_ptr is None:
            return self._binding.bind_output_on(name, device_type, device_id)
        if element_type is None or shape is None:
            raise ValueError(f"output '{name}': a buffer_ptr needs element_type and shape")
        value = self._at(device_type, device_id, element_type, shape, buffer_ptr)
        return self._binding.bind_output(name, value, False)

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue, replaces_input: bool = False) -> None:
        """Binds an output to the value's own bytes.

        Args:
            name: the output.
            ortvalue: a tensor of the output's dtype and shape.
            replaces_input: True allows bytes of one input, which a run that succeeds replaces.
        """
        self._binding.bind_output(name, ortvalue, replaces_input)

    def synchronize_inputs(self) -> None:
        """Waits for the work of the session's devices. Writes on streams of other libraries are theirs to wait for."""
        self._session._session.synchronise()

    def synchronize_outputs(self) -> None:
        """Waits until outputs that were left on a device are complete. Those on the host are when the run returns."""
        self._session._session.synchronise()

    def output_shapes(self) -> dict[str, Optional[list[int]]]:
        """Returns the shapes that a run on the inputs bound now will give, by name: for allocating before the run.

        None stands for a shape that depends on the inputs' elements and shows only at run time.
        """
        return self._binding.output_shapes()

    def get_outputs(self) -> list[OrtValue]:
        """Returns the OrtValues of the run that ended last; empty before the first one and after
        clear_binding_outputs().
        """
        return self._binding.outputs()

    def copy_outputs_to_cpu(self) -> list[Any]:
        """Returns the outputs of the run that ended last as NumPy arrays, copied if they are on a device."""
        return self._binding.outputs_on_host()

    def clear_binding_inputs(self) -> None:
        """Forgets all bound inputs."""
        self._binding.clear_inputs()

    def clear_binding_outputs(self) -> None:
        """Forgets all bound outputs, and those of the last run."""
        self._binding.clear_outputs()
