# Builds from packages alone. The command line: docker build --target core -t meshwise .
# With the page and the door for agents (default): docker build -t meshwise . && docker run --rm -p 127.0.0.1:8765:8765 -e MESHWISE_TOKEN=... meshwise
FROM python:3.12-slim AS build
RUN apt-get update && apt-get install --yes --no-install-recommends git && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
RUN pip install --no-cache-dir '.[site]' && python tools/site_builder.py && pip wheel --no-deps --wheel-dir /wheels .

FROM python:3.12-slim AS core
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir /wheels/*.whl && useradd --create-home meshwise
USER meshwise
WORKDIR /home/meshwise
ENTRYPOINT ["meshwise"]
CMD ["--help"]

FROM core AS ui
USER root
RUN pip install --no-cache-dir "$(ls /wheels/*.whl)[ui,mcp]"
USER meshwise
EXPOSE 8765
# others reach a container's page through its port, so it needs a token: MESHWISE_TOKEN
CMD ["ui", "--host", "0.0.0.0", "--no-browser"]
