"""FIELDS: everything that can be told of a run, one row a field: its name, quantity, unit and group, and the words that others use for it.

Launch files, logs, tables and pages all name these fields; a name that only one program uses belongs in that program's file.
"""

import re
from dataclasses import dataclass
from typing import Literal, NamedTuple

from meshwise.cost.axes import AXES
from meshwise.runs.numbers import UNITS, Quantity

Group = Literal["layout", "stages", "batch", "work", "model", "machine", "serving", "result", "row"]


@dataclass(frozen=True)
class Field:
    """One field of a run."""

    name: str
    help: str
    group: Group
    quantity: Quantity = ""
    """A key of UNITS; '' for words."""
    unit: str = ""
    """Unit of a number that states none."""
    column: str = ""
    """Its column in tables of measurements, where that is not its name."""
    words: str = ""
    """Other names of it, without spaces and marks. A name may state a unit of its own: 'msperiter=ms'."""

    @property
    def title(self) -> str:
        """Its name in tables of measurements."""
        return self.column or self.name


def _axis(name: str, help: str) -> Field:
    column, words = _AXIS_WORDS.get(name, ("", ""))
    counted = name not in ("recompute", "sp", "schedule", "offload")
    return Field(name, help, "layout", "count" if counted else "", column=column, words=words)


_AXIS_WORDS = {
    "tp": ("", "tensorparallel tensorparallelism tensormodelparallelsize tensorparallelsize tpsize tensorparalleldegree"),
    "pp": (
        "",
        "pipelineparallel pipelineparallelism pipelinemodelparallelsize pipelineparallelsize ppsize pipelineparalleldegree",
    ),
    "cp": ("", "contextparallel contextparallelsize contextparalleldegree"),
    "ep": ("", "expertparallel expertmodelparallelsize expertparalleldegree"),
    "mbs": ("micro_batch", "microbatch microbatchsize localbatchsize trainmicrobatchsizepergpu"),
    "vpp": ("interleave", "virtualstages"),
    "zero": ("zero_stage", "zs zerostage"),
    "recompute": ("", "activationcheckpointing recomputegranularity checkpointactivations"),
    "sp": ("seq_parallel", "seqparallel sequenceparallel"),
}
"""Column and other names of an axis."""

# fmt: off
FIELDS: tuple[Field, ...] = (
    *(_axis(axis.name, axis.help) for axis in AXES),
    Field("dp", "Data-parallel ranks.", "layout", "count",
          words="dataparallel dataparallelism dataparallelsize dpsize dpreplicas dpdegree"),
    Field("sharding", "How data ranks share state: ddp, zero1, fsdp, hsdp.", "layout"),
    Field("attention_dp", "Attention is data-parallel over devices that share the experts.", "layout"),
    Field("recompute_modules", "Modules whose activations are recomputed, in the program's words.", "layout"),
    Field("recompute_layers", "Layers of a stage (or of one group, if uniform) that are recomputed.", "layout", "count"),
    Field("first_stage_layers", "Layers of the first pipeline stage, where it has another number.", "stages", "count"),
    Field("last_stage_layers", "Layers of the last pipeline stage, where it has another number.", "stages", "count"),
    Field("embedding_in_split", "The embedding counts as a layer when layers are cut into stages.", "stages"),
    Field("loss_in_split", "The output head counts as a layer when layers are cut into stages.", "stages"),
    Field("stage_layout", "Layers of every stage, in the program's words.", "stages"),

    Field("batch", "Sequences per step.", "batch", "count", column="global_batch_seqs",
          words="gbs globalbatch globalbatchsize trainbatchsize totaltrainbatchsize batchsize"),
    Field("accumulation", "Micro-batches of one data-parallel rank per step.", "batch", "count", column="grad_accum",
          words="gradientaccumulation gradientaccumulationsteps gas"),
    Field("seq", "Tokens per sequence.", "batch", "count", column="seq_len",
          words="seqlength sequencelength sequence maxseqlen maxseqlength blocksize contextlength maxlength"),
    Field("ramp", "Batch sizes of a ramp-up: start, increment, samples.", "batch"),
    Field("per_device_batch", "Sequences of one device per pass.", "batch", "count",
          words="perdevicetrainbatchsize perdevicebatchsize instantaneousbatchsizeperdevice batchperdevice batchpergpu"),
    Field("tokens_per_step", "Tokens per step.", "batch", "count",
          words="effectivebatchsize tokensperiteration batchtokens globalbatchtokens"),

    Field("steps", "Steps of the run.", "work", "count", words="-"),
    Field("samples", "Sequences of the run.", "work", "count", words="-"),
    Field("tokens", "Tokens of the run.", "work", "count", words="-"),
    Field("framework", "Training program.", "work", words="library program"),
    Field("release", "Release of the program, or the day from which it has its facts.", "work",
          words="version programversion frameworkversion"),
    Field("attention", "Attention kernel: unfused, triton, fa2, fa3, fa4, cudnn or xla.", "work",
          words="attentionkernel attnimpl attentionimpl attentionbackend attnimplementation attentionimplementation"),
    Field("overlap", "Communication that is hidden behind compute: 'ep,tp', 'no-dp'; what is not named is as the release does.", "work",
          words="overlaps commoverlap"),
    Field("graphs", "CUDA graphs: none, partial (layers) or full (a whole step).", "work", words="cudagraphs cudagraph"),
    Field("gradients", "Dtype in which gradients are summed and reduced: fp32 or bf16.", "work",
          words="gradientdtype graddtype reducedtype gradreducedtype"),
    Field("capacity", "Tokens that an expert computes over the mean, where more are dropped.", "work", "plain", column="capacity_factor",
          words="moecapacityfactor expertcapacityfactor"),
    Field("precision", "Precision of matrix products.", "work", words="dtype mixedprecision paramsdtype"),
    Field("optimizer", "Optimizer.", "work"),
    Field("loss", "How the loss is computed: materialised, compiled, kernel, chunked or fused.", "work",
          column="loss_kind", words="- losskernel lossimplementation"),
    Field("compile", "Layers are compiled.", "work"),
    Field("router", "How tokens choose experts: 'drops tokens'.", "work"),
    Field("finetune", "Weights that are trained, such as lora:16 or freeze:4; empty where all are.", "work", column="tune", words="-"),
    Field("base", "Format of a frozen base: nf4, nf4-single, int8, gptq or awq; empty for 16 bits, or qlora's nf4.", "work", column="base",
          words="- baseformat basequantization"),
    Field("in_backward", "Each weight is updated as soon as its gradient exists.", "work", words="optimizerinbwd optimizerinbackward"),
    Field("adapter", "Trains adapters (lora, dora, qlora) instead of all weights.", "work", words="-"),
    Field("rank", "Rank of the adapters.", "work", "count", words="-"),
    Field("alpha", "Numerator of the adapters' scale.", "work", "plain", words="-"),
    Field("targets", "Modules that have adapters.", "work", words="-"),
    Field("objective", "Loss: sft, dpo, kto, orpo, reward.", "work", words="-"),
    Field("frozen", "Some weights are frozen.", "work", words="-"),
    Field("frozen_layers", "Layers that are frozen, the first ones, with the embedding.", "work", "count", words="-"),
    Field("save_every", "Steps between checkpoints.", "work", "count", words="-"),
    Field("seed", "Seed.", "work", "count", words="-"),

    Field("model", "Name, hub id or path of the model.", "model", words="modelname name modeltype architecture"),
    Field("params", "Parameters.", "model", "count", column="params_b",
          words="paramsb=b sizeb=b size parameters nparams numparams modelsize numberofparameters modelparams modelnparams"),
    Field("layers", "Layers.", "model", "count", column="n_layers",
          words="nlayers numlayers numberoflayers nlayer numhiddenlayers nlayersderived"),
    Field("hidden", "Width of the residual stream.", "model", "count", column="d_model",
          words="nhidden hiddensize nembd embdim dmodelderived width"),
    Field("ffn", "Width of the feed-forward layer.", "model", "count", column="d_ff", words="ffnhiddensize intermediatesize ffnsize"),
    Field("heads", "Query heads.", "model", "count", column="n_heads", words="numattentionheads attentionheads nhead"),
    Field("kv_heads", "Key-value heads.", "model", "count", column="n_kv_heads", words="numkeyvalueheads numquerygroups"),
    Field("head_dim", "Width of a head.", "model", "count"),
    Field("vocab", "Vocabulary.", "model", "count",
          words="vocabsize vocablength vocabulary paddedvocabsize nvocab vocabularysize"),
    Field("positions", "Learned positions, or longest sequence.", "model", "count", words="-"),
    Field("gated", "The feed-forward layer is gated (SwiGLU).", "model"),
    Field("tied", "The output head shares the embedding's weights.", "model", words="-"),
    Field("position_kind", "Positions: learned, rope or alibi.", "model", words="-"),
    Field("norm", "Norm: layernorm or rmsnorm.", "model", words="-"),
    Field("biased", "Linear layers have biases.", "model", words="-"),
    Field("qkv_bias", "Query, key and value projections have biases.", "model", words="-"),
    Field("qk_norm", "Norm of queries and keys: head or all.", "model", words="-"),
    Field("rope_theta", "Base of rotary positions.", "model", "plain", words="-"),
    Field("norm_eps", "Epsilon of the norms.", "model", "plain", words="-"),
    Field("experts", "Experts of a layer.", "model", "count", column="n_experts"),
    Field("top_k", "Experts of a token.", "model", "count"),
    Field("expert_ffn", "Width of an expert.", "model", "count", column="d_expert"),
    Field("shared_experts", "Experts that every token uses.", "model", "count"),
    Field("shared_ffn", "Width of the experts that every token uses, together.", "model", "count"),
    Field("dense_layers", "First layers without experts.", "model", "count", words="-"),
    Field("expert_groups", "Groups of experts that a token chooses from.", "model", "count", words="-"),
    Field("group_top_k", "Groups of experts of a token.", "model", "count", words="-"),
    Field("q_rank", "Width of compressed queries (latent attention).", "model", "count", words="-"),
    Field("kv_rank", "Width of compressed keys and values (latent attention).", "model", "count", words="-"),
    Field("nope_dim", "Width of a head without positions (latent attention).", "model", "count", words="-"),
    Field("rope_dim", "Width of the rotary part of a head (latent attention).", "model", "count", words="-"),
    Field("v_dim", "Width of a head's values (latent attention).", "model", "count", words="-"),
    Field("mtp_layers", "Layers that predict further tokens.", "model", "count", words="-"),

    Field("nodes", "Nodes.", "machine", "count", words="nnodes numnodes nhosts"),
    Field("devices_per_node", "Devices, or processes, per node.", "machine", "count", column="gpus_per_node", words="nprocpernode"),
    Field("devices", "Devices in all.", "machine", "count", column="n_gpus",
          words="gpus numgpus worldsize gpucount ndevices numberofgpus gpusused chips"),
    Field("chip", "Kind of device.", "machine", column="gpu", words="device accelerator gpuname gputype hardware gpuinfo"),
    Field("cluster", "A whole cluster by name, such as '2 x v5e-256'.", "machine"),
    Field("network", "Kind of network: EFA, Omni-Path, InfiniBand HDR.", "machine"),
    Field("network_gbps", "Bandwidth between nodes, Gbit/s of one device.", "machine", "plain", column="inter_node_gbps_per_gpu"),
    Field("link", "Link between the devices of a served model.", "machine"),
    Field("hours", "Time limit of the job.", "machine", "plain", words="-"),

    Field("engine", "Serving engine.", "serving"),
    Field("backend", "Library that an engine was built for: cuda, rocm, vulkan, metal.", "serving"),
    Field("weights", "Format of the weights.", "serving", column="quant", words="- quantization"),
    Field("bits_per_weight", "Bits per weight of the file.", "serving", "plain"),
    Field("users", "Requests at a time, at most; with --set, the users of the load. 'max': all that it admits.", "serving", "count",
          column="batch_or_concurrency", words="concurrency nseq"),
    Field("rate", "Requests per second that arrive.", "serving", "rate", column="requests_per_s",
          words="requestrate requestspersecond rps"),
    Field("requests", "Requests of a benchmark.", "serving", "count", column="n_requests", words="numrequests numprompts"),
    Field("prompt", "Prompt tokens of a request.", "serving", "count", column="prompt_len", words="nprompt prompttokens"),
    Field("output", "Output tokens of a request.", "serving", "count", column="gen_len", words="ngen generatedtokens"),
    Field("prompt_spread", "Standard deviation of prompt tokens over their mean.", "serving", "plain"),
    Field("output_spread", "Standard deviation of output tokens over their mean.", "serving", "plain"),
    Field("depth", "Cached tokens before the prompt.", "serving", "count", words="cachedtokens"),
    Field("prefix", "Share of prompt tokens that are cached.", "serving", "share", words="prefixshare cachehitrate"),
    Field("context", "Longest context of one request.", "serving", "count", column="n_ctx"),
    Field("batched_tokens", "Tokens of one forward pass, at most.", "serving", "count"),
    Field("slots", "Requests that the engine admits at once, where more are sent.", "serving", "count"),
    Field("poll_passes", "Passes between two looks for new requests (SGLang's scheduler_recv_interval).", "serving", "count",
          words="schedulerrecvinterval"),
    Field("chunked", "One pass computes decode tokens and pieces of prompts together.", "serving"),
    Field("prefix_caching", "Prefixes of earlier prompts are kept in the cache.", "serving"),
    Field("draft", "Tokens that speculative decoding proposes per step.", "serving", "count", words="numspeculativetokens"),
    Field("accept", "Share of proposed tokens that are accepted.", "serving", "share", words="acceptance acceptancerate"),
    Field("adapters", "LoRA adapters that requests choose from.", "serving", "count"),
    Field("adapter_rank", "Largest rank of the adapters.", "serving", "count"),
    Field("kv", "Type of the KV cache.", "serving", column="kv_type", words="kvcachetype cachetype kvcachedtype"),
    Field("memory_share", "Share of the device's memory that the engine uses.", "serving", "share"),
    Field("replicas", "Copies of the served model.", "serving", "count"),
    Field("split", "How a model is split over cards: layer, tensor, row or none.", "serving", words="splitmode sm"),
    Field("shares", "Shares of the cards.", "serving"),
    Field("gpu_layers", "Layers on cards.", "serving", "count"),
    Field("expert_layers", "Layers whose experts stay in host memory.", "serving", "count"),
    Field("flash", "Flash attention.", "serving", column="flash_attention", words="flashattn"),

    Field("seconds", "Seconds per step.", "result", "seconds", "s", column="sec_per_iter",
          words="secit sec secperit iterationtime steptime timeperiteration timeperstep trainingtime secondsperstep "
          "elapsedtimeperiteration iterationtimes time/step secstep stepseconds sit elapsedtimeperiterations "
          "msperiter=ms steptimems=ms msiter=ms iterationtimems=ms"),
    Field("forward_seconds", "Seconds of the forward pass.", "result", "seconds", "s", words="forwardpass forward fwd forwardtime"),
    Field("tokens_per_second", "Tokens per second of all devices.", "result", "rate",
          words="tokenspersec tokenss tokenssec toks tokps totaltokenspersecond totalthroughput throughput combinedthroughput "
          "totaltokensps"),
    Field("tokens_per_second_per_device", "Tokens per second of one device.", "result", "rate", column="tokens_per_sec_per_gpu",
          words="toksgpu tokenssgpu tokenspersecondpergpu tokenssecgpu tgs tps tpspergpu tokensspergpu tokpersecpergpu "
          "tokensperseconddevice toksdevice throughputpergpu"),
    Field("samples_per_second", "Sequences per second.", "result", "rate", words="samplespersec sampless samplessec trainsamplespersecond"),
    Field("tflops", "FLOP/s of one device; by Megatron's formula, the recomputed forward included unless an MFU is stated.", "result",
          "flops", "t", column="tflops_per_gpu",
          words="tflopsgpu throughputpergputflopsgpu modeltflops tflopssgpu tflopsdevice hardwaretflopspergpu"),
    Field("hardware_tflops", "FLOP/s of one device, the recomputed forward included.", "result", "flops", "t", words="-"),
    Field("mfu", "Model FLOP/s over the chip's peak.", "result", "share", words="modelflopsutilization"),
    Field("hfu", "The same with the recomputed forward counted.", "result", "share", words="hardwareflopsutilization"),
    Field("efficiency", "Scaling efficiency.", "result", "share",
          words="scalingefficiency parallelefficiency weakscaling strongscaling"),
    Field("memory", "Bytes of the fullest device; in the unit of mem_unit.", "result", "bytes", "gb", column="mem_gb",
          words="memgb=gib mem maxmem peakmemory memorygpu memorypergpu memoryusage vram peakmem maxmemory maxmemoryallocated "
          "memoryallocated weightsmemory"),
    Field("memory_unit", "Unit of the column of memory.", "result", column="mem_unit"),
    Field("memory_kind", "Bytes that memory counts: allocated (tensors), reserved (by the allocator), device (nvidia-smi).", "result",
          column="mem_kind"),
    Field("reserved", "Bytes that the allocator reserved.", "result", "bytes", "gb", words="memoryreserved maxmemoryreserved"),
    Field("allocated", "Bytes that the allocator gave out.", "result", "bytes", "gb"),
    Field("peak", "Most bytes at once.", "result", "bytes", "gb"),
    Field("device_weights", "Weights on one device, MiB, as a log or a dry run prints them.", "result", "plain", column="weights_mib",
          words="modelmib"),
    Field("device_cache", "Cache on one device, MiB.", "result", "plain", column="kv_mib", words="contextmib"),
    Field("device_compute", "Compute buffer of one device, MiB.", "result", "plain", column="compute_mib"),
    Field("sized_device", "Device of these sizes, in the engine's words: CUDA0, CPU.", "result", column="device", words="-"),
    Field("prefill", "Prompt tokens per second.", "result", "rate", column="prefill_tok_s",
          words="prefilltoks promptprocessing promptevalrate"),
    Field("decode", "Output tokens per second of all requests.", "result", "rate", column="decode_tok_s",
          words="decodetoks generation evalrate"),
    Field("each", "Output tokens per second of one request.", "result", "rate", column="tok_s_per_user",
          words="tokspersuser tokssperuser toksperuser tokensperuser tokspuser"),
    Field("mixed", "Tokens per second of prompts and outputs together.", "result", "rate", words="-"),
    Field("rate_of", "What a rate counts: 'decode-only', 'per GPU', 'per user'.", "result"),
    Field("ttft", "Time to the first token.", "result", "seconds", "s", column="ttft_ms", words="ttftms=ms timetofirsttoken meanttft"),
    Field("ttft_p95", "Time to the first token that 95% of requests stay below.", "result", "seconds", "s", column="ttft_p95_ms",
          words="ttftp95ms=ms p95ttft"),
    Field("tpot", "Time per output token after the first.", "result", "seconds", "s", column="tpot_ms",
          words="tpotms=ms itlms=ms itl timeperoutputtoken meantpot"),
    Field("model_bytes", "Bytes of the model's file.", "result", "bytes", "gb", words="-"),
    Field("first_loss", "Loss of the first step.", "result", "plain", words="loss initialloss loss0 lmloss trainloss startloss"),
    Field("loss_step", "The step of that loss.", "result", "plain"),
    Field("steps_seen", "Steps in a log.", "result", "count", words="-"),
    Field("nans", "Steps whose loss was not a number.", "result", "count", words="-"),
    Field("outcome", "ok, oom, or fail for reasons that the source does not state.", "result", words="status result"),

    Field("date", "Day of the run.", "row"),
    Field("source", "Publication.", "row"),
    Field("row_id", "Name of the row.", "row", words="id"),
    Field("note", "Remarks.", "row", words="notes comment"),
    Field("era", "Release or time of the run.", "row"),
    Field("dup_of", "The row that this one repeats.", "row"),
    Field("chk_flag", "Numbers that do not add up in the row.", "row"),
)
# fmt: on
BY_NAME = {field.name: field for field in FIELDS}
BY_COLUMN = {field.title: field for field in FIELDS}


class Column(NamedTuple):
    """A column of a table: its field, and the unit of its numbers."""

    field: Field
    unit: str


def squeeze(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _words() -> dict[str, Column]:
    """Return the column that each word means; of two fields with one word, the first. A field whose words begin with '-' is not known by
    its own name, only by its column and its other words."""
    found: dict[str, Column] = {}
    for field in FIELDS:
        hidden = field.words.startswith("-")
        for text in (*field.words.split(), field.column, "" if hidden else field.name):
            word, _, unit = text.partition("=")
            if squeeze(word):
                found.setdefault(squeeze(word), Column(field, unit or field.unit))
    return found


WORDS = _words()
_IN_NAME = re.compile(r"[\[(]\s*([^\])]*)[\])]")


def find_column(name: str) -> Column | None:
    """Return the field of a column name, with the unit that the name states: 'iteration time (ms)', 'Mem [GiB]', 'step_ms', 'MFU %'."""
    bracket = _IN_NAME.search(name)
    inside = bracket[1].strip().lower() if bracket else "%" if "%" in name else ""
    for bare in (_IN_NAME.sub("", name), name):
        column = WORDS.get(squeeze(bare))
        if column is None:
            continue
        factors = UNITS.get(column.field.quantity, {})
        unit = inside if inside in factors else inside.split("/")[0] if inside.split("/")[0] in factors else ""
        named = squeeze(inside) in ("gpu", "pergpu", "device", "total", "global")
        if inside and not unit and column.field.quantity and bare != name and not named:
            return WORDS.get(squeeze(name))
        return Column(column.field, unit or column.unit)
    return _suffixed(name)


def _suffixed(name: str) -> Column | None:
    """Return the column of a name that ends in its unit: 'step_time_ms', 'peak_mem_mib'."""
    stem, _, last = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_").rpartition("_")
    column = WORDS.get(squeeze(stem)) if stem else None
    if column is None or not column.field.quantity or last not in UNITS[column.field.quantity]:
        return None
    return Column(column.field, last)
