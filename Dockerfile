# docker build -t inferometer .
# docker build --build-arg ENGINES="transformers openvino" -t inferometer:engines .    # with engines for CPUs
# docker run --rm inferometer predict llama-3.1-8b --hardware h100_sxm
# docker run --rm -v "$PWD/runs:/data/runs" inferometer:engines quick smollm2-135m --load-format dummy
ARG PYTHON=3.11

FROM python:${PYTHON}-slim AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN python -m venv /inferometer/venv \
 && /inferometer/venv/bin/pip install --no-cache-dir --disable-pip-version-check -q -r src/inferometer/measure/locks/core.lock \
 && /inferometer/venv/bin/pip wheel --no-cache-dir --disable-pip-version-check -q --no-deps --wheel-dir /inferometer/wheels . \
 && /inferometer/venv/bin/pip install --no-cache-dir --disable-pip-version-check -q --no-deps /inferometer/wheels/*.whl \
 && rm -r /inferometer/wheels
# Each engine lives in an environment of its own, made from the locks of the package. torch has builds for CPUs and for each CUDA:
# --build-arg PIP_EXTRA_INDEX_URL=... names the index of the one that you want.
ARG ENGINES=""
ARG PIP_EXTRA_INDEX_URL=""
RUN mkdir -p /inferometer/engines \
 && for engine in $ENGINES; do INFEROMETER_ENGINES_DIR=/inferometer/engines /inferometer/venv/bin/inferometer engines --install "$engine" || exit 1; done

FROM python:${PYTHON}-slim
# Engines need the OpenMP runtime.
RUN apt-get update \
 && apt-get install -y --no-install-recommends libgomp1 \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --uid 1000 --create-home inferometer \
 && install -d -o inferometer /data /cache
COPY --from=build /inferometer /inferometer
ENV PATH=/inferometer/venv/bin:$PATH \
    INFEROMETER_ENGINES_DIR=/inferometer/engines \
    NUMBA_CACHE_DIR=/cache/numba \
    XDG_CACHE_HOME=/cache \
    HF_HUB_OFFLINE=1
USER inferometer
WORKDIR /data
# The simulator is compiled once, here.
RUN inferometer simulate llama-3.1-8b --hardware h100_sxm --rate 1 --requests 10 > /dev/null
ENTRYPOINT ["inferometer"]
CMD ["--help"]
