"""Fields of a run: each with its quantity and the names that tables, logs and arguments use for it.

Names that only one program uses belong in the file of its format (see `arguments.read_arguments`).
"""

import re
from dataclasses import dataclass

from meshwise.runs.numbers import UNITS, Quantity


@dataclass(frozen=True)
class Field:
    """The meaning of a column. `quantity` is empty for text."""

    name: str
    quantity: Quantity
    unit: str = ""
    """Unit of numbers without one, unless the column's name states it."""


def _fields(quantity: Quantity, unit: str = "", **names: str) -> dict[str, Field]:
    return {
        alias: Field(name, quantity, unit)
        for name, aliases in names.items()
        for alias in (name.replace("_", ""), *aliases.split())
    }


FIELDS: dict[str, Field] = {
    **_fields(
        "count",
        params="size parameters nparams numparams modelsize numberofparameters modelparams modelnparams",
        n_layers="layers nlayers numlayers numberoflayers nlayer numhiddenlayers nlayersderived",
        d_model="hidden nhidden hiddensize dmodel nembd embdim dmodelderived width",
        d_ff="ffn dff ffnhiddensize intermediatesize ffnsize",
        n_heads="heads nheads numattentionheads attentionheads nhead",
        n_kv_heads="kvheads numkeyvalueheads numquerygroups nkvheads",
        vocab="vocabsize vocablength vocabulary paddedvocabsize vocab nvocab vocabularysize",
        seq_len="seq seqlen seqlength sequencelength sequence maxseqlen maxseqlength blocksize contextlength maxlength",
        n_gpus="gpus ngpus numgpus worldsize gpucount devices ndevices numberofgpus gpusused chips",
        nodes="nodes nnodes numnodes",
        gpus_per_node="gpuspernode nprocpernode",
        dp="dp dataparallel dataparallelism dataparallelsize dpsize dpreplicas dpdegree",
        tp="tp tensorparallel tensorparallelism tensormodelparallelsize tensorparallelsize tpsize tensorparalleldegree",
        pp="pp pipelineparallel pipelineparallelism pipelinemodelparallelsize pipelineparallelsize ppsize pipelineparalleldegree",
        cp="cp contextparallel contextparallelsize contextparalleldegree",
        ep="ep expertparallel expertmodelparallelsize expertparalleldegree",
        interleave="vpp virtualstages",
        zero_stage="zs zero zerostage",
        micro_batch="mbs microbatch microbatchsize localbatchsize trainmicrobatchsizepergpu",
        per_device_batch="perdevicetrainbatchsize perdevicebatchsize instantaneousbatchsizeperdevice batchperdevice batchpergpu",
        global_batch_seqs="gbs globalbatch globalbatchsize trainbatchsize totaltrainbatchsize batch batchsize globalbatchseqs",
        grad_accum="gradaccum gradientaccumulation gradientaccumulationsteps accumulation gas",
        tokens_per_step="tokensperstep effectivebatchsize tokensperiteration batchtokens globalbatchtokens",
        prompt="promptlen nprompt prompttokens",
        output="genlen ngen generatedtokens",
        users="batchorconcurrency concurrency users nseq",
        depth="depth cachedtokens",
        draft="draft numspeculativetokens",
        requests="nrequests numrequests numprompts",
    ),
    **dict.fromkeys(("paramsb", "sizeb"), Field("params", "count", "b")),
    **_fields(
        "seconds",
        "s",
        seconds="secit sec secperiter secperit iterationtime steptime timeperiteration timeperstep trainingtime secondsperstep "
        "elapsedtimeperiteration iterationtimes time/step secstep stepseconds sit elapsedtimeperiterations",
        forward_seconds="forwardpass forward fwd forwardtime",
        ttft="ttft timetofirsttoken meanttft",
        tpot="tpot itl timeperoutputtoken meantpot",
    ),
    **dict.fromkeys(("msperiter", "steptimems", "msiter", "iterationtimems"), Field("seconds", "seconds", "ms")),
    **_fields(
        "rate",
        tokens_per_second="tokenspersec tokenss tokenssec toks tokps totaltokenspersecond totalthroughput throughput "
        "combinedthroughput totaltokensps tokenspersecond",
        tokens_per_second_per_gpu="tokenspersecpergpu toksgpu tokenssgpu tokenspersecondpergpu tokenssecgpu tgs tps tpspergpu "
        "tokensspergpu tokpersecpergpu tokensperseconddevice toksdevice throughputpergpu",
        samples_per_second="samplespersecond samplespersec sampless samplessec trainsamplespersecond",
        prefill="prefilltoks prefill promptprocessing promptevalrate",
        decode="decodetoks decode generation evalrate",
        each="tokspersuser tokssperuser toksperuser tokensperuser tokspuser",
        request_rate="requestspers requestrate requestspersecond rps",
    ),
    **_fields(
        "flops",
        "t",
        tflops="tflops tflopspergpu tflopsgpu throughputpergputflopsgpu modeltflops tflopssgpu tflopsdevice hardwaretflopspergpu",
    ),
    **_fields("share", prefix="prefix prefixshare cachehitrate", accept="accept acceptance acceptancerate"),
    **_fields("share", efficiency="scalingefficiency parallelefficiency weakscaling strongscaling"),
    **_fields("share", mfu="mfu modelflopsutilization", hfu="hfu hardwareflopsutilization"),
    **_fields(
        "bytes",
        "gb",
        memory="mem memgb memory maxmem peakmemory memorygpu memorypergpu memoryusage vram peakmem maxmemory maxmemoryallocated "
        "memoryallocated weightsmemory",
        reserved="reserved memoryreserved maxmemoryreserved",
        allocated="allocated",
        peak="peak",
    ),
    **_fields("plain", loss="loss initialloss loss0 lmloss trainloss startloss", loss_step="lossstep"),
    **_fields(
        "",
        model="model modelname name modeltype architecture",
        gpu="gpu chip device accelerator gpuname gputype hardware gpuinfo",
        framework="framework library program",
        engine="engine backend",
        precision="precision dtype mixedprecision paramsdtype",
        recompute="recompute activationcheckpointing recomputegranularity checkpointactivations",
        seq_parallel="seqparallel sequenceparallel",
        sharding="sharding",
        flash_attention="flashattention flashattn",
        quant="quant quantization",
        split="split splitmode sm",
        kv_type="kvtype kvcachetype cachetype kvcachedtype",
        rate_of="rateof",
        outcome="outcome status result",
        date="date",
        note="note notes comment",
        mem_unit="memunit",
        dup_of="dupof",
        chk_flag="chkflag",
        source="source",
        row_id="rowid id",
        era="era",
        link="link",
        link_gbps="internodegbpspergpu",
    ),
}

_IN_NAME = re.compile(r"[\[(]\s*([^\])]*)[\])]")


def squeeze(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def find_field(name: str) -> Field | None:
    """Return the field of a column name, with the unit that the name states: 'iteration time (ms)', 'Mem [GiB]', 'step_ms', 'MFU %'."""
    bracket = _IN_NAME.search(name)
    inside = bracket[1].strip().lower() if bracket else "%" if "%" in name else ""
    for bare in (_IN_NAME.sub("", name), name):
        field = FIELDS.get(squeeze(bare))
        if field is None:
            continue
        factors = UNITS.get(field.quantity, {})
        unit = inside if inside in factors else inside.split("/")[0] if inside.split("/")[0] in factors else ""
        if (
            inside
            and not unit
            and field.quantity
            and bare != name
            and squeeze(inside) not in ("gpu", "pergpu", "device", "total", "global")
        ):
            return FIELDS.get(squeeze(name))
        return Field(field.name, field.quantity, unit or field.unit)
    return _suffixed(name)


def _suffixed(name: str) -> Field | None:
    """Return the field of a name that ends in its unit: 'step_time_ms', 'peak_mem_mib'."""
    stem, _, last = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_").rpartition("_")
    field = FIELDS.get(squeeze(stem)) if stem else None
    if field is None or not field.quantity or last not in UNITS[field.quantity]:
        return None
    return Field(field.name, field.quantity, last)
