import cProfile, pstats, io, torch, time, sys, subprocess
from benchmarks.nnconv import NNConvGKN, problem
from benchmarks.kernel_integral import stepper, timed, captured, kernel_sizes, peak_of
from gkn.pyg import from_nnconv
print(subprocess.run("which nvcc; ls /usr/local | head; nvidia-smi | head -15", shell=True, capture_output=True, text=True).stdout)
print(hasattr(torch.cuda, "_compile_kernel"), torch.__version__)
graph, x, a, u, _ = problem(20, 200, .25, "cuda")
for rec in (False, True):
    torch.manual_seed(0)
    model = from_nnconv(NNConvGKN().cuda(), 2, 6, recompute=rec)
    step = stepper(model, u, graph, x, a, kind="bf16")
    step()
    print("recompute", rec, "peak", peak_of(step, "cuda")/2**30, "ms", 1000*timed(step, 20))
    step(); torch.cuda.synchronize()
    t=time.perf_counter(); step(); t1=time.perf_counter(); torch.cuda.synchronize(); print("launch time", (t1-t)*1e3, "until done", (time.perf_counter()-t)*1e3)
    pr=cProfile.Profile(); pr.enable()
    for _ in range(5): step()
    torch.cuda.synchronize()
    pr.disable()
    s=io.StringIO(); pstats.Stats(pr, stream=s).sort_stats("tottime").print_stats(28); print("\n".join(l[:120] for l in s.getvalue().splitlines() if l.strip()))
    if rec:
        try: print("captured", 1000*timed(captured(step), 10))
        except Exception as e: print("no capture", repr(e)[:300])
a = torch.randn(4000, 65536, device="cuda", dtype=torch.bfloat16); d = torch.randn(4000, 64, device="cuda", dtype=torch.bfloat16)
W = torch.randn(65536, 64, device="cuda", dtype=torch.bfloat16); acc = torch.zeros(65536, 64, device="cuda")
def t(name, f):
    try: print(f"{name:40} {1000*timed(f, 20):.4f} ms")
    except Exception as e: print(name, repr(e)[:200])
t("dW bf16", lambda: a.T @ d)
t("dW add fp32", lambda: acc.add_(a.T @ d))
t("dW mm out_dtype", lambda: torch.mm(a.T, d, out_dtype=torch.float32))
t("dW addmm out_dtype", lambda: torch.addmm(acc, a.T, d, out_dtype=torch.float32))
t("fwd a@W", lambda: a @ W)
t("dA", lambda: torch.mm(d, W.T, out=a))
for c in (100, 200, 250, 400, 500, 1000):
    b = a[:c]; dd = d[:c]
    t(f"chunk {c} dA", lambda: torch.mm(dd, W.T, out=b))
    t(f"chunk {c} fwd", lambda: b @ W)
    def both():
        for _ in range(4000//c): torch.mm(dd, W.T, out=b); b @ W
    g = captured(both); t(f"chunk {c}: write and read all, captured", g)
def whole(): torch.mm(d, W.T, out=a); a @ W
t("whole: write and read, captured", captured(whole))
