# SPDX-License-Identifier: Apache-2.0
"""Where the inputs of runs are and where their outputs go, with the conventions of onnxruntime's IOBinding and OrtValue."""

from typing import Optional, Sequence

from caesura import _core
from caesura.sessions.values import dtype_number

OrtValue = _core.OrtValue


def ortvalue_from_shape_and_type(shape: Sequence[int], element_type, device_type: str = "cpu", device_id: int = 0):
    """A tensor of zeros on the host, for a run's output. element_type: of NumPy, or ONNX's number."""
    if device_type != "cpu":
        raise NotImplementedError(f"memory on {device_type} comes from its own library; OrtValue.from_dlpack takes it")
    return OrtValue._from_shape(list(shape), dtype_number(element_type))


OrtValue.ortvalue_from_shape_and_type = staticmethod(ortvalue_from_shape_and_type)


class IOBinding:
    """Inputs and outputs by name, bound once for many runs of one session.

    A binding says where things are; it never holds a result that a later run could write to. Unlike onnxruntime's:
      - inputs are never copied when they are bound: a run reads the caller's own bytes, so what was written to them since
        is seen. What is not dense is refused, where onnxruntime binds a copy.
      - an output that is bound to a device alone is fresh memory in each run, of whatever shape comes out; what was
        handed out before stays its receiver's, unchanged. A second run with other shapes just works.
      - a buffer is checked: dtype, rank and known dims when it is bound, the size in the run; memory that is shared with
        an input or with another output is refused (bind_ortvalue_output(..., replaces_input=True) lets an output take the
        place of an input, once the run has succeeded).
      - threads may share a session, and even a binding with fresh outputs: use what run_with_iobinding returns;
        get_outputs() is that of whichever run ended last.
    Outputs come in the order in which they were bound.
    """

    def __init__(self, session):
        self._session = session
        self._binding = _core.Binding(session._session)
        self.run = self._binding.run

    def bind_cpu_input(self, name: str, arr_on_cpu):
        """A NumPy array, or any tensor with DLPack. It is kept alive, and read in the run; strings are copied here."""
        self._binding.bind_input(name, arr_on_cpu if isinstance(arr_on_cpu, OrtValue) else OrtValue.from_dlpack(arr_on_cpu))

    def bind_input(self, name: str, device_type: str, device_id: int, element_type, shape: Sequence[int], buffer_ptr: int):
        """Bytes at an address, which the caller keeps alive and has finished writing when a run begins."""
        value = OrtValue._from_pointer(device_type, device_id, dtype_number(element_type), list(shape), buffer_ptr)
        self._binding.bind_input(name, value)

    def bind_ortvalue_input(self, name: str, ortvalue):
        self._binding.bind_input(name, ortvalue)

    def bind_output(self, name: str, device_type: str = "cpu", device_id: int = 0, element_type=None,
                    shape: Optional[Sequence[int]] = None, buffer_ptr: Optional[int] = None):
        """Without a buffer_ptr: fresh memory on that device in each run."""
        if buffer_ptr is None:
            return self._binding.bind_output_on(name, device_type, device_id)
        if element_type is None or shape is None:
            raise ValueError(f"output '{name}': a buffer_ptr needs element_type and shape")
        value = OrtValue._from_pointer(device_type, device_id, dtype_number(element_type), list(shape), buffer_ptr)
        return self._binding.bind_output(name, value, False)

    def bind_ortvalue_output(self, name: str, ortvalue, replaces_input: bool = False):
        """Into the value's own bytes. replaces_input: they may be those of one input, which a successful run replaces."""
        self._binding.bind_output(name, ortvalue, replaces_input)

    def synchronize_inputs(self):
        """Waits for the work of the session's devices. Writes that others make on streams of their own are theirs to
        wait for."""
        self._session._session.synchronise()

    def synchronize_outputs(self):
        """Waits until outputs that were left on a device are complete; those on the host are when the run returns."""
        self._session._session.synchronise()

    def output_shapes(self) -> dict:
        """The outputs that a run with the inputs bound now will give, by name: for allocating before the run. None where
        the shape depends on the inputs' elements and shows only in the run."""
        return self._binding.output_shapes()

    def get_outputs(self) -> list:
        """OrtValues of the run that ended last; empty before the first one and after clear_binding_outputs()."""
        return self._binding.outputs()

    def copy_outputs_to_cpu(self) -> list:
        """The same as NumPy arrays, copied where they are on a device."""
        return self._binding.outputs_on_host()

    def clear_binding_inputs(self):
        self._binding.clear_inputs()

    def clear_binding_outputs(self):
        self._binding.clear_outputs()
