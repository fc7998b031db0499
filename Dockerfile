# SPDX-License-Identifier: Apache-2.0
# caesura on Debian 13, by a wheel for Python 3.12 and newer that lies in dist/ (cmake/wheel.sh makes it):
#
#   docker build -t caesura . && docker run caesura
FROM debian:13-slim
RUN apt-get update && apt-get install -y --no-install-recommends python3 python3-venv ca-certificates
COPY dist/*-abi3-*.whl /tmp/
RUN python3 -m venv /opt/caesura && /opt/caesura/bin/pip install --no-cache-dir /tmp/*-abi3-*.whl
ENV PATH=/opt/caesura/bin:$PATH
CMD ["caesura", "env"]
