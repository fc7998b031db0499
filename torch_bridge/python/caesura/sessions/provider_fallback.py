# SPDX-License-Identifier: Apache-2.0
"""Provider fallback: sessions go on when a provider fails."""

from typing import Any, Optional


class FallsBack:
    """A session whose provider fails goes on with the default providers, once, and stays there.

    The default providers are CUDA's, if the session has it and it is not the one that failed, and the CPU's. Only a
    provider's own failure counts: when the session is made, when it compiles, when it runs, device memory that runs out
    included. A mistake of the caller, a missing kernel or a lack of host memory is an error as always. The run that
    failed is done again, and the session warns once on stderr. `_session` is the class of the extension.
    """

    _session: Any

    def disable_fallback(self) -> None:
        """From now on a provider's failure is the run's error. A session that has fallen back stays where it is."""
        self._session.disable_fallback()

    def enable_fallback(self) -> None:
        """Allows fallbacks again, as when the session was made."""
        self._session.enable_fallback()

    def get_providers(self) -> list[str]:
        """Returns the names of the providers that run nodes now, in order of preference."""
        return list(self._session.providers())

    def fallback_record(self) -> Optional[dict[str, Any]]:
        """Returns None if there was no fallback, otherwise a dict.

        Its keys: `provider` that failed; `phase`: "create", "compile" or "run"; `node` where it failed; `cause`: its
        error; `when`: seconds since 1970; `runs_before`: runs that had ended; `milliseconds` that the new program
        took; `bytes` of weights and constants made anew for it, and `shared_bytes` that both share; `providers` that
        run nodes from then on.
        """
        record: Optional[dict[str, Any]] = self._session.fallback_record()
        return record
