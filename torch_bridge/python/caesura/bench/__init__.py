# SPDX-License-Identifier: Apache-2.0
"""Whole training steps of caesura beside those of other systems: `python -m caesura.bench --help`.

Every system trains in a process of its own (worker.py), so that none shares threads, memory or libraries with another.
Modules here import each other relatively: a peer's process, which does not load caesura, runs this folder as the
package `bench`.
"""
