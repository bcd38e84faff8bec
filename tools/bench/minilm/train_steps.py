#!/usr/bin/env python3
"""Fine-tune a BERT sentence encoder for a few steps and keep every step as a
complete checkpoint directory.

    pip install numpy ml_dtypes safetensors tokenizers jax
    python train_steps.py --model MODEL_DIR --out OUT --dtype bf16 --lr 1e-5

MODEL_DIR is a Hugging Face style directory (model.safetensors, config.json,
tokenizer.json), for example that of sentence-transformers/all-MiniLM-L6-v2.

What is trained, and how:

* objective: in-batch contrastive loss on pairs of sentences (cross entropy over
  scaled cosine similarities, "multiple negatives ranking"), mean pooling, the
  dropout rates of config.json;
* AdamW, betas (0.9, 0.999), eps 1e-8, constant learning rate, no warm-up, decoupled
  weight decay on everything but biases and LayerNorm parameters;
* master weights, gradients and optimizer state are float32. A checkpoint holds the
  masters rounded to nearest (ties to even) in the dtype asked for;
* as in PyTorch, a parameter that takes no part in the loss (BERT's pooler) is left
  alone, and a row of an embedding table whose token is not in the batch has a zero
  gradient: it is decayed, and moves on with the momentum that it has.

OUT/step-0 is the starting point cast to the dtype, OUT/step-K the weights after K
optimizer steps. With --branch-from B, OUT/step-(STEPS+1) is one more step that starts
from the weights of step B instead of the last one, with another seed, so other pairs,
and a fresh optimizer. It starts from the float32 masters of step B; to start from the
rounded weights that were written, run the script again with --model OUT/step-B,
--steps 1 and --number-from N, which writes OUT/step-N only.

Integer tensors (position_ids) are copied as they are. Everything runs on one CPU
thread, so a run repeats bit for bit on the same machine and library versions; on
others expect the same picture, not the same bits.
"""

import argparse
import json
import os
import shutil
import sys
import time
from pathlib import Path

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file
from tokenizers import Tokenizer

BETA1, BETA2, EPS, WEIGHT_DECAY = 0.9, 0.999, 1e-8, 0.01
SIMILARITY_SCALE = 20.0
MAX_TOKENS = 128
COPIED = (
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.txt",
)

# Each pair says the same thing twice; the other pairs of a batch are its negatives.
PAIRS = [
    ("The ferry leaves the harbour at half past six.",
     "At 6:30 the boat sets off from the port."),
    ("How do I remove a coffee stain from a cotton shirt?",
     "What is the best way to get coffee out of cotton clothes?"),
    ("She planted tomatoes along the southern wall of the garden.",
     "Tomato plants grow by the wall on the sunny side of her garden."),
    ("The committee rejected the proposal by a narrow margin.",
     "By only a few votes the plan was turned down."),
    ("A sorted array can be searched in logarithmic time.",
     "Binary search finds an element of an ordered list in O(log n)."),
    ("Heavy snow closed the mountain pass for three days.",
     "The road over the mountains was blocked by snowfall until Thursday."),
    ("The patient should take the tablets twice a day after meals.",
     "Two pills daily, following food, are prescribed."),
    ("Our train was delayed because of a broken signal.",
     "A signalling fault made the train late."),
    ("The museum offers free entry on the first Sunday of each month.",
     "You do not pay for the museum on every first Sunday."),
    ("Copper conducts electricity better than iron.",
     "Iron is a poorer electrical conductor than copper."),
    ("The cat slept on the warm bonnet of the car.",
     "A kitten was napping on top of a parked automobile."),
    ("Interest rates rose for the fourth time this year.",
     "The central bank has lifted borrowing costs once more."),
    ("Use a heavy pan and let the onions brown slowly.",
     "Caramelise the onions over low heat in a thick-bottomed skillet."),
    ("The orchestra tuned its instruments before the concert.",
     "Before the performance began, the musicians adjusted their pitch."),
    ("A mutex protects the counter from concurrent updates.",
     "Threads take a lock before they change the shared count."),
    ("He learned to swim when he was nearly forty.",
     "Only in his late thirties did he discover how to swim."),
    ("The river flooded the lower town last spring.",
     "In April the streets near the water were under a metre of it."),
    ("Please confirm your reservation before Friday.",
     "We need your booking confirmed by the end of the week."),
    ("The telescope can resolve galaxies ten billion light years away.",
     "Very distant galaxies are visible with this instrument."),
    ("My bicycle has a flat tyre again.",
     "The wheel of my bike has another puncture."),
    ("The novel tells the story of three sisters in a small village.",
     "It is a book about three siblings who live in the countryside."),
    ("Restart the router if the connection drops.",
     "When you lose internet access, turn the modem off and on."),
    ("The bakery sells out of rye bread before nine.",
     "Come early, because the rye loaves are gone by mid-morning."),
    ("Sea turtles return to the beach where they hatched.",
     "To lay eggs, the turtles go back to their place of birth."),
    ("The lawyer asked for the hearing to be postponed.",
     "A delay of the court session was requested by the defence."),
    ("You can renew your passport online.",
     "Passport renewal is possible through the website."),
    ("The bridge was built without a single nail.",
     "No nails at all went into the construction of the bridge."),
    ("A vaccine trains the immune system to recognise a virus.",
     "Immunisation teaches the body to identify a pathogen."),
    ("The children built a castle out of sand.",
     "Kids made a fortress on the beach."),
    ("The company reported a loss for the second quarter.",
     "From April to June the firm did not make a profit."),
    ("Turn left at the church and follow the lane uphill.",
     "Go up the small road to the left of the chapel."),
    ("The battery lasts about twelve hours on a full charge.",
     "Fully charged, it runs for half a day."),
    ("Glass is made by melting sand with soda and lime.",
     "Silica, sodium carbonate and limestone are fused into glass."),
    ("The striker scored twice in the final ten minutes.",
     "Two late goals came from the forward."),
    ("Garbage collection pauses the program for a few milliseconds.",
     "The runtime briefly stops the application to reclaim memory."),
    ("The old lighthouse is now a small hotel.",
     "Guests can stay overnight in what used to be a lighthouse."),
    ("Wolves were reintroduced to the park in the nineties.",
     "About thirty years ago wolves came back to the reserve."),
    ("She speaks four languages, among them Finnish.",
     "Finnish is one of the four tongues she has mastered."),
    ("The meeting has been moved to room twelve.",
     "We will gather in a different room, number 12."),
    ("Store the paint in a dry place away from frost.",
     "Keep paint cans where it neither freezes nor gets damp."),
]


def load(model_dir):
    """Every tensor of the checkpoint, and its metadata."""
    with safe_open(str(model_dir / "model.safetensors"), framework="np") as f:
        return {k: f.get_tensor(k) for k in f.keys()}, f.metadata()


def is_float(a):
    return a.dtype in (np.float32, np.float16, np.dtype(ml_dtypes.bfloat16))


def takes_part(name):
    """The sentence embedding pools the last hidden layer: BERT's pooler is not used."""
    return not name.startswith("pooler.")


def decays(name):
    return not (name.endswith(".bias") or "LayerNorm" in name)


def write_checkpoint(out, masters, untouched, dtype, model_dir, metadata):
    out.mkdir(parents=True)
    cast = {k: np.ascontiguousarray(v.astype(dtype)) for k, v in masters.items()}
    save_file({**cast, **untouched}, str(out / "model.safetensors"), metadata=metadata)
    os.chmod(out / "model.safetensors", 0o644)  # some versions of the library leave 0600
    for name in COPIED:
        if (model_dir / name).exists():
            shutil.copyfile(model_dir / name, out / name)


def layer_norm(p, name, x, eps):
    mean = x.mean(-1, keepdims=True)
    var = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) / jnp.sqrt(var + eps) * p[name + ".weight"] + p[name + ".bias"]


def dense(p, name, x):
    return x @ p[name + ".weight"].T + p[name + ".bias"]


def dropout(x, rate, key):
    if key is None or rate == 0.0:
        return x
    return jnp.where(jax.random.bernoulli(key, 1.0 - rate, x.shape), x / (1.0 - rate), 0.0)


def embed(p, cfg, ids, mask, key):
    """Unit sentence vectors. key None: no dropout."""
    batch, length = ids.shape
    heads, hidden = cfg["num_attention_heads"], cfg["hidden_size"]
    eps = cfg["layer_norm_eps"]
    drop, attn_drop = cfg["hidden_dropout_prob"], cfg["attention_probs_dropout_prob"]
    keys = [None] * (1 + 3 * cfg["num_hidden_layers"])
    if key is not None:
        keys = list(jax.random.split(key, len(keys)))

    x = p["embeddings.word_embeddings.weight"][ids]
    x = x + p["embeddings.token_type_embeddings.weight"][0]
    x = x + p["embeddings.position_embeddings.weight"][:length]
    x = dropout(layer_norm(p, "embeddings.LayerNorm", x, eps), drop, keys.pop())

    bias = jnp.where(mask[:, None, None, :] == 1, 0.0, -1e9)
    for i in range(cfg["num_hidden_layers"]):
        at = f"encoder.layer.{i}."

        def split(y):
            return y.reshape(batch, length, heads, hidden // heads).transpose(0, 2, 1, 3)

        q = split(dense(p, at + "attention.self.query", x))
        k = split(dense(p, at + "attention.self.key", x))
        v = split(dense(p, at + "attention.self.value", x))
        score = q @ k.transpose(0, 1, 3, 2) / np.sqrt(hidden // heads) + bias
        score = dropout(jax.nn.softmax(score, -1), attn_drop, keys.pop())
        y = (score @ v).transpose(0, 2, 1, 3).reshape(batch, length, hidden)
        y = dropout(dense(p, at + "attention.output.dense", y), drop, keys.pop())
        x = layer_norm(p, at + "attention.output.LayerNorm", x + y, eps)
        y = jax.nn.gelu(dense(p, at + "intermediate.dense", x), approximate=False)
        y = dropout(dense(p, at + "output.dense", y), drop, keys.pop())
        x = layer_norm(p, at + "output.LayerNorm", x + y, eps)

    m = mask[..., None].astype(x.dtype)
    x = (x * m).sum(1) / m.sum(1)
    return x / jnp.sqrt((x * x).sum(-1, keepdims=True))


def make_loss(cfg):
    def loss(p, ids, mask, key):
        e = embed(p, cfg, ids, mask, key)
        n = ids.shape[0] // 2
        logits = SIMILARITY_SCALE * e[:n] @ e[n:].T
        return -jnp.diag(jax.nn.log_softmax(logits, -1)).mean()

    return jax.jit(jax.value_and_grad(loss))


class Trainer:
    def __init__(self, cfg, tokenizer, loss, params, seed, batch, lr):
        self.tokenizer, self.loss, self.batch, self.lr = tokenizer, loss, batch, lr
        self.params = params
        self.m = {k: np.zeros_like(v) for k, v in params.items()}
        self.v = {k: np.zeros_like(v) for k, v in params.items()}
        self.steps = 0
        self.rng = np.random.default_rng(seed)
        self.key = jax.random.key(seed)

    def encode(self, texts):
        e = self.tokenizer.encode_batch(texts)
        return (np.array([x.ids for x in e], np.int32),
                np.array([x.attention_mask for x in e], np.int32))

    def step(self):
        """One AdamW step, in the order of torch.optim.AdamW: decay, then update."""
        chosen = self.rng.choice(len(PAIRS), self.batch, replace=False)
        pairs = [PAIRS[i] for i in chosen]
        ids, mask = self.encode([a for a, _ in pairs] + [b for _, b in pairs])
        self.key, key = jax.random.split(self.key)
        value, grads = self.loss(self.params, ids, mask, key)

        self.steps += 1
        correct1 = 1.0 - BETA1 ** self.steps
        correct2 = 1.0 - BETA2 ** self.steps
        norm2, params = 0.0, {}
        for name, w in self.params.items():
            if not takes_part(name):
                params[name] = w
                continue
            g = np.asarray(grads[name])
            norm2 += float((g.astype(np.float64) ** 2).sum())
            m, v = self.m[name], self.v[name]
            m += (g - m) * np.float32(1.0 - BETA1)
            v *= np.float32(BETA2)
            v += g * g * np.float32(1.0 - BETA2)
            if decays(name):
                w = w * np.float32(1.0 - self.lr * WEIGHT_DECAY)
            denom = np.sqrt(v) / np.float32(correct2 ** 0.5) + np.float32(EPS)
            params[name] = w - np.float32(self.lr / correct1) * (m / denom)
        self.params = params
        return float(value), norm2 ** 0.5, int(mask.sum()), len(np.unique(ids))


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    ap.add_argument("--model", type=Path, required=True, help="checkpoint directory")
    ap.add_argument("--out", type=Path, required=True)
    ap.add_argument("--dtype", choices=("bf16", "f32"), default="bf16")
    ap.add_argument("--lr", type=float, default=1e-5)
    ap.add_argument("--steps", type=int, default=5)
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--batch", type=int, default=16, help="pairs a step")
    ap.add_argument("--branch-from", type=int, metavar="B",
                    help="write one more step, on top of step B")
    ap.add_argument("--number-from", type=int, metavar="N",
                    help="call the first step step-N and do not write step-0")
    args = ap.parse_args()
    if not 1 <= args.batch <= len(PAIRS):
        ap.error(f"--batch: 1 to {len(PAIRS)}")
    if args.branch_from is not None and not 0 <= args.branch_from <= args.steps:
        ap.error("--branch-from: 0 to --steps")

    dtype = {"bf16": ml_dtypes.bfloat16, "f32": np.float32}[args.dtype]
    cfg = json.loads((args.model / "config.json").read_text())
    tokenizer = Tokenizer.from_file(str(args.model / "tokenizer.json"))
    tokenizer.enable_truncation(MAX_TOKENS)
    # One length for all batches, so that the step is compiled once.
    longest = max(sum(e.attention_mask)
                  for e in tokenizer.encode_batch([s for pair in PAIRS for s in pair]))
    tokenizer.enable_padding(pad_id=cfg["pad_token_id"], length=longest)

    tensors, metadata = load(args.model)
    masters = {k: v.astype(np.float32) for k, v in tensors.items() if is_float(v)}
    untouched = {k: v for k, v in tensors.items() if not is_float(v)}
    loss = make_loss(cfg)
    first = 1 if args.number_from is None else args.number_from

    def write(number, params):
        write_checkpoint(args.out / f"step-{number}", params, untouched, dtype,
                         args.model, metadata)

    def report(number, result, started):
        value, norm, tokens, distinct = result
        print(f"step-{number}: loss {value:.4f}, gradient norm {norm:.3f}, "
              f"{tokens} tokens ({distinct} distinct), {time.time() - started:.1f} s",
              flush=True)

    if args.number_from is None:
        write(0, masters)
    trainer = Trainer(cfg, tokenizer, loss, masters, args.seed, args.batch, args.lr)
    branch = masters
    for k in range(1, args.steps + 1):
        started = time.time()
        result = trainer.step()
        write(first + k - 1, trainer.params)
        report(first + k - 1, result, started)
        if k == args.branch_from:
            branch = trainer.params
    if args.branch_from is not None:
        started = time.time()
        trainer = Trainer(cfg, tokenizer, loss, branch, args.seed + 1000, args.batch, args.lr)
        result = trainer.step()
        write(first + args.steps, trainer.params)
        report(first + args.steps, result, started)
        print(f"step-{first + args.steps} is on top of step-{args.branch_from}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
