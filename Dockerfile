# murmur with speech and reports, for CPUs: docker build -t murmur . && docker run --rm -v "$PWD:/work" murmur --help
#
# PyTorch of the default index brings CUDA's libraries along (gigabytes). For an image without them name an index that
# has CPU builds: --build-arg TORCH_INDEX=ADDRESS
FROM python:3.11.14-slim-bookworm AS build
RUN pip install --no-cache-dir build==1.6.1
WORKDIR /src
COPY pyproject.toml hatch_build.py constraints.txt README.md LICENSE ./
COPY src src
RUN PIP_CONSTRAINT=/src/constraints.txt python -m build --wheel --outdir /dist

FROM python:3.11.14-slim-bookworm
ARG TORCH_INDEX=
ARG EXTRAS=speech,synth,viz
COPY --from=build /src/constraints.txt /dist/*.whl /dist/
RUN pip install --no-cache-dir -c /dist/constraints.txt ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} torch \
    && pip install --no-cache-dir -c /dist/constraints.txt "$(ls /dist/*.whl)[$EXTRAS]" \
    && rm -r /dist \
    && useradd --uid 1000 --create-home murmur
USER murmur
WORKDIR /work
ENTRYPOINT ["murmur"]
CMD ["--help"]
