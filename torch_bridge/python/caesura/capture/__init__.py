# SPDX-License-Identifier: Apache-2.0
"""From a module's code to a graph: Dynamo's side."""
