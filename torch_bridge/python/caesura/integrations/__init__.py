# SPDX-License-Identifier: Apache-2.0
"""Integrations: caesura under the names of other libraries."""
