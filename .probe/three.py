import torch, time, gc, cProfile, pstats, io, sys
from benchmarks.nnconv import NNConvGKN, problem
from benchmarks.kernel_integral import stepper, timed, captured, peak_of
from gkn.pyg import from_nnconv
import gkn.models.kernel as K
def t(name, f):
    try: print(f"{name:40} {1000*timed(f, 20):.4f} ms", flush=True)
    except Exception as e: print(name, repr(e)[:200])
graph, x, a, u, _ = problem(20, 200, .25, "cuda")
for rec, room in ((False, 26), (True, 26), (True, 27), (True, 28)):
    gc.collect(); torch.cuda.empty_cache(); print("before", torch.cuda.memory_allocated()/2**30)
    K.GROUP_BYTES["cuda"] = 2**room
    torch.manual_seed(0)
    model = from_nnconv(NNConvGKN().cuda(), 2, 6, recompute=rec)
    step = stepper(model, u, graph, x, a, kind="bf16")
    del model
    step()
    print("recompute", rec, room, "peak", peak_of(step, "cuda")/2**30, flush=True); t("eager", step)
    step(); torch.cuda.synchronize()
    s=time.perf_counter(); step(); t1=time.perf_counter(); torch.cuda.synchronize(); print("launch time", (t1-s)*1e3, "until done", (time.perf_counter()-s)*1e3)
    if room == 26:
        pr=cProfile.Profile(); pr.enable()
        for _ in range(5): step()
        torch.cuda.synchronize()
        pr.disable()
        s=io.StringIO(); pstats.Stats(pr, stream=s).sort_stats("tottime").print_stats(30); print("\n".join(l[:120] for l in s.getvalue().splitlines() if l.strip()))
    del step
