#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# PyTorch 2.13.0, 2.15.0: the backend aot_eager loses a check of a size that depends on values, and returns a number where eager raises.
#
# A size made of int(x.max()) meets a size that changes. Dynamo takes both to be equal and adds a check to its graph. AOT autograd's
# trace puts the truth value of another check in its place, so that nothing compares the sizes any more. The backends "eager" and
# "inductor" raise. Backends that are built on AOT autograd and do not check by themselves, as inductor does, compute with the wrong
# size.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/sums.py" <<'PY'
import torch

print("PyTorch", torch.__version__)
torch._dynamo.config.capture_scalar_outputs = True


def distance(x, groups, wanted):
    sums = x.new_zeros(int(groups.max()) + 1).index_add(0, groups, x)
    return (sums - wanted).square().sum()


for backend in ("eager", "aot_eager", "inductor"):
    torch._dynamo.reset()
    compiled = torch.compile(distance, backend=backend, fullgraph=True)
    for count in (3, 5, 4):
        given = torch.randn(2 * count), torch.arange(count).repeat(2), torch.randn(count)
        torch.testing.assert_close(compiled(*given), distance(*given))
    given = torch.ones(8), torch.arange(8) % 3, torch.ones(4)  # three sums, four wanted
    for name, function in (("without torch.compile", distance), (backend, compiled)):
        try:
            print(f"{name}: {function(*given).item()}")
        except RuntimeError as error:
            print(f"{name}: {str(error).splitlines()[0]}")
PY
for release in 2.13.0 2.15.0; do
  python3 -m venv "$folder/$release"
  "$folder/$release/bin/pip" install -q --disable-pip-version-check "torch==$release" numpy==2.4.6
  "$folder/$release/bin/python" "$folder/sums.py"
done | tee "$folder/seen"
[[ $(grep -c "^aot_eager: [0-9.]*$" "$folder/seen") = 2 && $(grep -c "^inductor: .*Eq" "$folder/seen") = 2 ]] || { echo "changed"; exit 1; }
# Output seen, 2026-11-30, without warnings; of 2.15.0 the same with s78 as well:
#   PyTorch 2.13.0+cpu
#   without torch.compile: The size of tensor a (3) must match the size of tensor b (4) at non-singleton dimension 0
#   eager: Runtime assertion failed for expression Eq(u0 + 1, s78) on node 'eq'
#   without torch.compile: The size of tensor a (3) must match the size of tensor b (4) at non-singleton dimension 0
#   aot_eager: 10.0
#   without torch.compile: The size of tensor a (3) must match the size of tensor b (4) at non-singleton dimension 0
#   inductor: Eq(u0 + 1, s78)
