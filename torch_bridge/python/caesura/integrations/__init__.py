# SPDX-License-Identifier: Apache-2.0
"""caesura under the names that other libraries have for such things."""
