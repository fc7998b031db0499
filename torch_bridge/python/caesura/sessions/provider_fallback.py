# SPDX-License-Identifier: Apache-2.0
"""What sessions do when a provider fails."""


class FallsBack:
    """A session whose provider fails goes on with the default providers, once, and stays there.

    The default providers are CUDA's, where the session has it and it is not the one that failed, and the CPU's. Only a
    provider's own failure counts (in making the session, in compiling, in a run; device memory that runs out, too): what
    the caller did wrong, a missing kernel or a lack of host memory is an error as ever. The run that failed is done again,
    and the session warns once on stderr. `_session` is the class of the extension.
    """

    def disable_fallback(self) -> None:
        """From here on a provider's failure is the run's error. A session that has fallen back stays where it is."""
        self._session.disable_fallback()

    def enable_fallback(self) -> None:
        """As sessions are when they are made."""
        self._session.enable_fallback()

    def get_providers(self) -> list:
        """Names of the providers that run nodes now, in order of preference."""
        return self._session.providers()

    def fallback_record(self):
        """None where there was no fallback, otherwise a dict:

        provider: that failed; phase: "create", "compile" or "run"; node: where; cause: its error; when: seconds since
        1970; runs_before: how many had come to their end; milliseconds: that the new program took; bytes, shared_bytes: of
        weights and constants made anew for it, and shared; providers: that run nodes from then on.
        """
        return self._session.fallback_record()
