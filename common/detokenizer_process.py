"""The detokenizer's process: token ids in from every replica's rank 0, text out to main. It never imports torch."""

from __future__ import annotations

from common.args import EngineArgs
from common.channels import Endpoints, Receiver, Sender
from common.detokenizer import IncrementalDetokenizer
from common.faults import in_process
from common.messages import TokenBatch
from common.processes import ChildContext, configure_logging
from common.tokenizer import Tokenizer
from common.tracing import make_trace


def run_detokenizer_process(context: ChildContext, args: EngineArgs, endpoints: Endpoints) -> None:
    """Works until every replica has sent its last batch."""
    configure_logging(args.log_level, "detokenizer")
    in_process(args, context)
    context.slot.is_detokenizer()
    receiver = Receiver(context.zmq, endpoints.token_batches, TokenBatch)
    sender = Sender(context.zmq, endpoints.texts)
    detokenizer = IncrementalDetokenizer(Tokenizer(args.model_path).decode)
    trace = make_trace(args.trace_dir, context.name)
    context.ready()

    replicas_left = args.dp_size
    while replicas_left:
        trace.turn()
        trace.part("idle")
        receiver.wait()
        trace.part("recv_requests")
        batch = receiver.receive()
        trace.part("detokenize")
        texts = detokenizer.process(batch)
        texts.last = batch.last
        trace.part("send_output")
        if trace.on:
            for chunk in texts.chunks:
                if chunk.finish:
                    trace.request("finished", chunk.rid)
        sender.send(texts, trace)
        context.board.detokenized(batch.replica)
        context.slot.take(1)
        replicas_left -= batch.last
    trace.close()
