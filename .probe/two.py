import torch, time, gc
from benchmarks.nnconv import NNConvGKN, problem
from benchmarks.kernel_integral import stepper, timed, captured, kernel_sizes, peak_of, agreement, profile
from gkn.pyg import from_nnconv
def t(name, f):
    try: print(f"{name:40} {1000*timed(f, 20):.4f} ms", flush=True)
    except Exception as e: print(name, repr(e)[:200])
for kind, e in agreement(1024, .25, "cuda").items(): print(kind, {k: {n: f"{x:.1e}" for n, x in v.items()} for k, v in e.items()}, flush=True)
graph, x, a, u, _ = problem(20, 200, .25, "cuda")
for rec in (False, True):
    gc.collect(); torch.cuda.empty_cache()
    torch.manual_seed(0)
    model = from_nnconv(NNConvGKN().cuda(), 2, 6, recompute=rec)
    step = stepper(model, u, graph, x, a, kind="bf16")
    del model
    step()
    print("recompute", rec, "peak", peak_of(step, "cuda")/2**30, flush=True); t("eager", step)
    step(); torch.cuda.synchronize()
    s=time.perf_counter(); step(); t1=time.perf_counter(); torch.cuda.synchronize(); print("launch time", (t1-s)*1e3, "until done", (time.perf_counter()-s)*1e3)
    try: t("captured", captured(step))
    except Exception as e: print("no capture", repr(e)[:300])
    del step
profile(20, 1024, .25, "bf16")
g = torch.randn(125000, 1024, device="cuda", dtype=torch.bfloat16)
one = torch.ones(1, 125000, device="cuda", dtype=torch.bfloat16); ones=torch.ones(16, 125000, device="cuda", dtype=torch.bfloat16)
t("sum", lambda: g.sum(0)); t("sum fp32", lambda: g.sum(0, dtype=torch.float32))
t("ones mm", lambda: torch.mm(one, g, out_dtype=torch.float32)); t("16 ones mm", lambda: torch.mm(ones, g, out_dtype=torch.float32))
t("mv", lambda: torch.mv(g.T, one[0]))
w = torch.randn(125000, 520, device="cuda", dtype=torch.bfloat16); w0=torch.randn(125000, 512, device="cuda", dtype=torch.bfloat16)
acc = torch.zeros(1024, 520, device="cuda"); acc0=torch.zeros(1024,512, device="cuda")
t("dW2 520", lambda: torch.addmm(acc, g.T, w, out_dtype=torch.float32)); t("dW2 512", lambda: torch.addmm(acc0, g.T, w0, out_dtype=torch.float32)); t("dW2 512 bf16", lambda: g.T @ w0)
for r in (128, 256):
    t(f"two-stage sum {r}", lambda: g[:125000//r*r].view(r, -1, 1024).sum(1).sum(0))
