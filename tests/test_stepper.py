"""Learning to step: conditioned norms, the loss of changes, unrolled steps, and all models by the same fit."""

import copy
import threading

import pytest
import torch

import gkn
from gkn import Dataset, Grid, NearFar, Radius
from gkn.data.normalizer import Normalizer
from gkn.data.stepping import Stepping
from gkn.graph.batches import Batches
from gkn.models import Stepper
from gkn.system.randomness import stream
from gkn.train.losses import loss_terms
from gkn.train.unroll import Unroll
from tests.decay import RATE, decaying

SMALL = {"width": 8, "blocks": 1, "head": 4, "slices": 2, "kernel": (4, 2)}
TINY = {
    "NearFar": SMALL,
    "Multigrid": {"width": 8, "cycles": 1, "levels": 2, "kernel": (4, 2)},
    "GKN": {"width": 8, "kernel": (8,), "steps": 2},
    "Transformer": {"width": 8, "blocks": 1, "head": 4},
    "SliceAttention": {"width": 8, "blocks": 1, "head": 4, "slices": 2},
    "Pointwise": {"hidden": (8,)},
    "FCN": {},
    "FNO": {"modes": 3, "width": 4, "layers": 1},
}


@pytest.mark.parametrize("name", TINY)
def test_all_models_learn_to_step(name, neuraloperator):
    data = decaying(n=6, T=4, grid=Grid(8))
    train, test = data.split(4, 2)
    options = {"epochs": 2, "batch": 4, "validation": test, "unroll": 0.5}
    operator = gkn.fit(train, name, settings=TINY[name], stepping=Stepping(pairs="all"), **options)
    norms = any(isinstance(module, torch.nn.LayerNorm) for module in operator.model.modules())
    assert isinstance(operator.model, Stepper)
    assert norms or name in ("GKN", "Pointwise", "FCN", "FNO")
    errors = operator.evaluate(test, train=train)
    assert torch.isfinite(errors.each).all()


def network(**more):
    torch.manual_seed(0)
    inner = NearFar(2, 4, 1, **SMALL, radius=0.4)
    return Stepper(2, 4, 1, inner, (2, 3), **more)


def inputs(functions=3, size=30):
    rng = torch.Generator().manual_seed(1)
    x = torch.rand(functions, size, 2, generator=rng)
    a = torch.rand(functions, size, 4, generator=rng)
    a[..., 2:] = torch.rand(functions, 1, 2, generator=rng)  # t and tau
    graph = gkn.Graph.batch([Radius(0.4).graph(each) for each in x])
    return graph, x, a


def test_conditioned_norms_in_bf16():
    """What is computed in float32 within autocast, such as the last layer, has a conditioned norm too."""
    graph, x, a = inputs()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = stirred(network())(graph, x.flatten(0, 1), a.flatten(0, 1))
    expected = stirred(network())(graph, x.flatten(0, 1), a.flatten(0, 1))
    assert (found - expected).norm() < 0.05 * expected.norm()


def stirred(model):
    """The model with scales that are not 0."""
    rng = torch.Generator().manual_seed(2)
    for name, parameter in model.named_parameters():
        if "scales" in name:
            parameter.data = 0.3 * torch.randn(parameter.shape, generator=rng)
    return model


def test_a_stepper_begins_as_the_network_it_wraps():
    graph, x, a = inputs(1)
    torch.manual_seed(0)
    plain = NearFar(2, 4, 1, **SMALL, radius=0.4)
    assert torch.equal(network()(graph, x[0], a[0]), plain(graph, x[0], a[0]))


def test_norms_depend_on_t_and_tau_of_their_own_function():
    """A batch is a loop over its functions, also for models whose layers have other rows than nodes."""
    torch.manual_seed(0)
    grid = gkn.Multigrid(2, 4, 1, width=8, cycles=2, levels=3, kernel=(4, 2), radius=0.2)
    graph, x, a = inputs()
    for inner, r in ((network().inner, 0.4), (grid, 0.2)):
        graph = gkn.Graph.batch([Radius(r).graph(each) for each in x])
        model = stirred(Stepper(2, 4, 1, copy.deepcopy(inner), (2, 3)) if inner is grid else network())
        together = model(graph, x.flatten(0, 1), a.flatten(0, 1)).reshape(3, -1)
        alone = torch.stack([model(Radius(r).graph(x[i]), x[i], a[i])[:, 0] for i in range(3)])
        assert torch.allclose(together, alone, atol=1e-5)
        other = a.clone()
        other[1, :, 3] += 1  # tau of the second function
        changed = model(graph, x.flatten(0, 1), other.flatten(0, 1)).reshape(3, -1)
        assert torch.allclose(changed[[0, 2]], together[[0, 2]], atol=1e-6)
        assert not torch.allclose(changed[1], together[1], atol=1e-3)


def test_norms_scale_and_shift_by_what_they_see():
    """norm(v) (1 + scale) + shift, with the features of t and tau as they are set."""
    model, v = stirred(network()), torch.rand(5, 8)
    norm = model.inner.norm
    features = torch.rand(1, 32)
    with model._now.set(features, {}):
        scale, shift = norm.scales(features).chunk(2, -1)
        assert torch.equal(norm(v), norm.norm(v) * (1 + scale) + shift)
    graph, x, a = inputs(1)
    assert not torch.allclose(model(graph, x[0], a[0]), network()(graph, x[0], a[0]), atol=1e-3)


def test_a_query_at_a_node_is_its_value():
    model = stirred(network())
    _, x, a = inputs(1)
    graph = Radius(0.4).graph(x[0])
    states = model.states(graph, x[0], a[0])
    found = model.at(states, graph, (x[0], a[0]), (x[0], a[0]))
    assert torch.allclose(found, model.finish(states), atol=1e-5)


def test_threads_do_not_see_the_time_of_each_other():
    model = stirred(network())
    cases = [(Radius(0.4).graph(x), x, a) for x, a in zip(*inputs(8)[1:], strict=True)]
    with torch.no_grad():
        alone = [model(*case) for case in cases]
    wrong = []

    def work(i):
        with torch.no_grad():
            for _ in range(20):
                if not torch.equal(model(*cases[i]), alone[i]):
                    wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    [each.start() for each in threads]
    [each.join() for each in threads]
    assert not wrong


def test_a_stepper_is_stored_and_copied():
    model = stirred(network())
    graph, x, a = inputs(1)
    again = gkn.models.model_from(model.config())
    again.load_state_dict(model.state_dict())
    for other in (again, copy.deepcopy(model)):
        assert torch.equal(other(graph, x[0], a[0]), model(graph, x[0], a[0]))
    with pytest.raises(ValueError, match="needed a network of sizes"):
        Stepper(2, 3, 1, model.inner, (0,))
    with pytest.raises(ValueError, match="needed numbers of input fields"):
        Stepper(2, 4, 1, model.inner, (4,))
    with pytest.raises(ValueError, match="a Stepper of sizes"):
        Stepper(2, 4, 1, model, (3,))


# --- the loss


@pytest.mark.parametrize("target", ["value", "difference", "quotient"])
def test_the_loss_is_the_error_of_the_state_whatever_the_target(target):
    data = decaying(n=2, T=4, step=0.5)
    view = data.pairs(Stepping(target, "all", longest=2.0))
    scaled = [Normalizer.fit(view, names) for names in (view.inputs, view.outputs)]
    batches = Batches(view, Radius(0.4), *scaled, weighted=True, dtype=torch.float64)
    batch = batches.batch([0, 2, 5])
    found = torch.rand(len(batch.x), 1, dtype=torch.float64)
    terms = loss_terms("relative", 0.0, found, batch)
    for term, part, p in zip(terms, found.split(batch.sizes), (0, 2, 5), strict=True):
        answer, tau = scaled[1].decode(part), view.parameter("tau", p)
        state = view.reference(p)
        reached = answer if state is None else (answer + state) * (tau if target == "quotient" else 1)
        i, w = view.number(p), data.domain.weights[:, None]
        frame = round((view.parameter("t", p) + tau) / 0.5)
        truth = data.value("u", i)[frame][:, None]
        wanted = ((w * (reached - truth) ** 2).sum() / (w * truth**2).sum()).sqrt()
        assert float(term) == pytest.approx(float(wanted), rel=1e-9)


def test_validation_is_the_error_of_the_state():
    """Of nothing learned, the error of one step is that of persistence, for changes as well as for rates."""
    data = decaying(n=4, T=3)
    model = gkn.rivals.Pointwise(2, 3, 1, hidden=(4,))
    for parameter in model.parameters():
        parameter.data.zero_()
    for target in ("difference", "quotient"):
        view = data.pairs(Stepping(target))
        zero = Normalizer(torch.zeros(1), torch.ones(1))
        operator = gkn.Operator(model, gkn.Points(), None, zero)
        found = gkn.relative_l2(operator, view)
        assert found.mean == pytest.approx(1 / torch.exp(torch.tensor(-RATE * 0.25)).item() - 1, rel=1e-6)


# --- unrolled steps


def test_held_boundary_values_are_right_in_the_unrolled_phase():
    """As in a rollout, they are set again after the first step, whatever the network makes of them."""
    data = decaying(n=2, T=4, step=0.5)
    view = data.pairs(Stepping(held=("u",)))
    scaled = [Normalizer.fit(view, names) for names in (view.inputs, view.outputs)]
    batches = Batches(view, Radius(0.4), *scaled, lead=Batches(view.leads(), Radius(0.4), *scaled))
    batches.leading = True
    batch = batches.batch([1, 2])
    changed = Unroll.of(view, scaled[0], batches.unit)(batch, batch.lead, torch.ones(len(batch.x), 1))
    assert torch.equal(batch.edge, data.domain.boundary.repeat(2))
    assert torch.equal(changed.a[batch.edge], batch.a[batch.edge])
    assert not torch.isclose(changed.a[~batch.edge, 0], batch.a[~batch.edge, 0]).any()


@pytest.mark.parametrize("target", ["value", "difference", "quotient"])
def test_unrolled_pairs_begin_with_what_the_network_predicts(target):
    """Batches are built from the changed states themselves and compared with those that `Unroll` changes."""
    data = decaying(n=2, T=5, step=0.5)
    view = data.pairs(Stepping(target, "all", longest=2.0))
    scaled = [Normalizer.fit(view, names) for names in (view.inputs, view.outputs)]
    options = {"dtype": torch.float64}
    lead = Batches(view.leads(), Radius(0.4), *scaled, **options)
    batches = Batches(view, Radius(0.4), *scaled, lead=lead, **options)
    assert batches.batch([0]).lead is None
    batches.leading = True
    chosen = [*range(len(view))]
    batch = batches.batch(chosen)
    found = 0.1 * torch.rand(len(batch.x), 1, dtype=torch.float64)  # what a network might answer, normalised
    changed = Unroll.of(view, scaled[0], batches.unit)(batch, batch.lead, found)
    tau_scale = [view.parameter("tau", p) if target == "quotient" else 1.0 for p in chosen]
    for p, part, new, old in zip(
        chosen, found.split(batch.sizes), changed.a.split(batch.sizes), batch.a.split(batch.sizes), strict=True
    ):
        leads = view.leads()
        first = leads.parameter("tau", p)
        state = scaled[0].encode(torch.zeros_like(old.double()))  # only for its shape
        answer = scaled[1].decode(part)
        begin = leads[p].a[:, :1]
        truth = view[p].a[:, :1]
        reached = {"value": answer, "difference": begin + answer, "quotient": begin + first * answer}[target]
        wanted = (reached if first > 0 else truth).squeeze()
        now = (new[:, 0] * scaled[0].std[0] + scaled[0].mean[0]).squeeze()
        assert torch.allclose(now, wanted, rtol=1e-9), (p, state.shape)
        assert torch.equal(new[:, 1:], old[:, 1:])
    if target != "value":  # the same state is to be reached from another one
        sizes, unit = batch.sizes, batches.unit
        for p, after, scale in zip(chosen, changed.deviation.split(sizes), tau_scale, strict=True):
            part = slice(sum(sizes[:p]), sum(sizes[: p + 1]))
            begin = changed.a[part, :1] * scaled[0].std[0] + scaled[0].mean[0]
            target_now = (after * unit + scaled[1].mean) * scale + begin
            frame = round((view.parameter("t", p) + view.parameter("tau", p)) / 0.5)
            assert torch.allclose(target_now[:, 0], data.value("u", view.number(p))[frame], rtol=1e-9)
        assert torch.allclose(changed.deviation + changed.counted, batch.deviation + batch.counted, rtol=1e-12)


@pytest.mark.parametrize("target", ["value", "difference", "quotient"])
def test_noise_changes_first_states_and_not_what_is_to_be_reached(target):
    """By a share of their standard deviation, but not where they are held, and the same for a graph in any batch."""
    data = decaying(n=2, T=4, step=0.5)
    view = data.pairs(Stepping(target, held=("u",)))
    scaled = [Normalizer.fit(view, names) for names in (view.inputs, view.outputs)]
    batches = Batches(view, Radius(0.4), *scaled, dtype=torch.float64)
    unroll, recipe = Unroll.of(view, scaled[0], batches.unit), gkn.Recipe(noise=0.2)
    chosen = [0, 3, 4]
    batch = batches.batch(chosen)
    noisy = unroll.noisy(batch, recipe, [stream(0, 9, p) for p in chosen])
    edge, away = batch.edge, (noisy.a - batch.a)[:, 0]
    assert not away[edge].any()
    assert float(away[~edge].std()) == pytest.approx(0.2, rel=0.25)  # inputs have the standard deviation 1
    assert torch.equal(noisy.a[:, 1:], batch.a[:, 1:])
    alone = unroll.noisy(batches.batch([3]), recipe, [stream(0, 9, 3)])
    assert torch.equal(alone.a, noisy.a[batch.sizes[0] : sum(batch.sizes[:2])])
    assert torch.equal(unroll.noisy(batch, gkn.Recipe(), []).a, batch.a)
    if target == "value":
        assert torch.equal(noisy.deviation, batch.deviation)
        return
    torch.testing.assert_close(noisy.deviation + noisy.counted, batch.deviation + batch.counted)
    for p, part, old, new in zip(
        chosen, noisy.deviation.split(batch.sizes), *(x.a.split(batch.sizes) for x in (batch, noisy)), strict=True
    ):
        scale = view.parameter("tau", p) if target == "quotient" else 1.0
        change = (part - batches.batch([p]).deviation) * batches.unit * scale
        torch.testing.assert_close(change, (old - new)[:, :1] * scaled[0].std[0])


def test_all_states_of_a_history_have_noise():
    """Older states that were exact would tell the network what the noise is."""
    data = decaying(n=2, T=5, step=0.5)
    view = data.pairs(Stepping("difference", history=2, held=("u",)))
    scaled = [Normalizer.fit(view, names) for names in (view.inputs, view.outputs)]
    batches = Batches(view, Radius(0.4), *scaled, dtype=torch.float64)
    batch = batches.batch([0, 1])
    noisy = Unroll.of(view, scaled[0], batches.unit).noisy(batch, gkn.Recipe(noise=0.2), [stream(0, 9, p) for p in (0, 1)])
    away, edge = noisy.a - batch.a, batch.edge
    assert not away[:, 2:].any()
    assert not away[edge].any()
    assert all(float(away[~edge, column].std()) == pytest.approx(0.2, rel=0.35) for column in (0, 1))
    assert not torch.isclose(away[~edge, 0], away[~edge, 1]).any()
    torch.testing.assert_close(noisy.deviation + noisy.counted, batch.deviation + batch.counted)


def test_training_with_noise_gives_the_same_bits_again(tmp_path):
    data, options = decaying(n=3, T=4), {"settings": SMALL, "stepping": Stepping(), "epochs": 2, "batch": 4, "device": "cpu"}
    one, again, without = (
        gkn.fit(data, **options, **more, warn=lambda text: None)
        for more in ({"noise": 0.05, "out": tmp_path / "one"}, {"noise": 0.05}, {})
    )
    states = [each.model.state_dict() for each in (one, again, without)]
    assert all(torch.equal(x, states[1][name]) for name, x in states[0].items())
    assert not all(torch.equal(x, states[2][name]) for name, x in states[0].items())


def test_every_graph_of_every_step_has_noise_of_its_own(monkeypatch):
    seen, noisy = [], Unroll.noisy

    def watched(self, batch, recipe, draws):
        seen.extend(draw.initial_seed() for draw in draws)
        return noisy(self, batch, recipe, draws)

    monkeypatch.setattr(Unroll, "noisy", watched)
    options = {"settings": SMALL, "stepping": Stepping(), "batch": 4, "noise": 0.1, "device": "cpu"}
    gkn.fit(decaying(n=3, T=4), **options, epochs=2, warn=lambda text: None)
    assert len(seen) == len({*seen}) == 2 * 9


def test_unrolled_training_resumes_to_the_same_bits(tmp_path):
    data = decaying(n=6, T=4)

    def run(folder, **more):
        options = {"settings": SMALL, "stepping": Stepping(pairs="all"), "epochs": 2, "batch": 4}
        return gkn.fit(data, **options, unroll=0.5, noise=0.05, out=folder, **more)

    whole = run(tmp_path / "whole")

    class Killed(BaseException):
        pass

    def kill(status):
        if status.step == 8:
            raise Killed

    with pytest.raises(Killed):
        run(tmp_path / "parts", save_every=0.0, report=kill)
    again = run(tmp_path / "parts")
    for ours, theirs in zip(whole.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    never = gkn.fit(data, settings=SMALL, stepping=Stepping(pairs="all"), epochs=2, batch=4)
    assert any(not torch.equal(a, b) for a, b in zip(whole.model.parameters(), never.model.parameters(), strict=True))


def test_training_goes_on_with_the_stepping_of_an_operator():
    data = decaying(n=4, T=3)
    operator = gkn.fit(data, settings=SMALL, stepping=Stepping("difference"), epochs=1)
    further = gkn.fit(data, operator, epochs=1)
    assert further.features.stepping == operator.features.stepping
    with pytest.raises(ValueError, match="leave this one out"):
        gkn.fit(data, operator, stepping=Stepping(), epochs=1)


def test_fit_says_what_it_needs():
    data = decaying()
    steady = Dataset(Grid(4), a=torch.rand(3, 16), u=torch.rand(3, 16))
    with pytest.raises(ValueError, match=r"fit\(stepping=.*: needed trajectories"):
        gkn.fit(steady, stepping=Stepping())
    with pytest.raises(ValueError, match="needed trajectories or steady samples"):
        gkn.fit([data, steady], settings=SMALL)
    with pytest.raises(ValueError, match=r"Recipe\(unroll=...\): needed trajectories"):
        gkn.fit(steady, settings=SMALL, epochs=1, unroll=0.5)
    with pytest.raises(ValueError, match=r"Recipe\(noise=...\): needed trajectories"):
        gkn.fit(steady, settings=SMALL, epochs=1, noise=0.5)
    with pytest.raises(ValueError, match=r"Recipe\(unroll="):
        gkn.Recipe(unroll=2.0)
    with pytest.raises(ValueError, match=r"Recipe\(noise=-0.1\): needed a number, > 0, at most 1"):
        gkn.Recipe(noise=-0.1)


def test_fields_that_are_held_must_be_outputs():
    with pytest.raises(ValueError, match=r"Stepping\(held=...\): no output 'zz'; there are u"):
        gkn.fit(decaying(n=4, grid=Grid(5)), settings=SMALL, epochs=1, stepping=Stepping(held=("zz",)))


def test_pairs_are_not_saved(tmp_path):
    with pytest.raises(ValueError, match="save the trajectories"):
        decaying().pairs().save(tmp_path / "p")
