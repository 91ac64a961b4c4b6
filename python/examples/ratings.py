"""A rating log, from a table to its components.

Makes a log of ratings with a structure that is known (three tastes, each with its users, movies and hours), packs it, finds the tastes
again, and recommends. Run it as it is, or cell by cell in an editor that knows ``# %%``. The plot needs matplotlib.
"""

# %% A log of ratings: user, movie, hour, stars.
import tempfile
from pathlib import Path

import numpy as np

import blco

USERS, MOVIES, HOURS, TASTES = 600, 400, 24, 3
rng = np.random.default_rng(7)
taste_of_user = rng.integers(0, TASTES, USERS)
taste_of_movie = rng.integers(0, TASTES, MOVIES)
# Children in the afternoon, thrillers in the evening, classics at night.
hours = np.array([15, 20, 2])

n = 200_000
user = rng.integers(0, USERS, n)
taste = taste_of_user[user]
movies_of = [np.flatnonzero(taste_of_movie == t) for t in range(TASTES)]
movie = np.array([movies_of[t][rng.integers(len(movies_of[t]))] for t in taste])
hour = (hours[taste] + rng.integers(-2, 3, n)) % HOURS
stars = rng.integers(3, 6, n)
# A tenth of it is noise.
noise = rng.random(n) < 0.1
movie[noise] = rng.integers(0, MOVIES, noise.sum())
log = {"user": user, "movie": movie, "hour": hour, "stars": stars}

# %% Pack it, once. A pandas or Polars frame would do as well.
directory = Path(tempfile.mkdtemp())
store = blco.pack(log, directory / "ratings.blco", modes=["user", "movie", "hour"], value="stars", shape=(USERS, MOVIES, HOURS))
print(" x ".join(map(str, store.shape)), f"with {store.nnz} nonzeros")
print(
    f"{store.stats['bytes'] / store.nnz:.2f} bytes a nonzero; {store.report['duplicates_summed']} ratings of the same movie and hour added up"
)

# %% Three components, none of which may be negative.
model = store.cp(rank=TASTES, nonneg=True, starts=3, tol=1e-6, max_iters=100)
print(f"fit {model.fit:.3f}")
for component in range(model.rank):
    peak = [f"{h}:00" for h, _ in model.top(component, mode=2, n=3)]
    print(f"component {component}: weight {model.weights[component]:.0f}, hours {', '.join(peak)}")

# %% Its components: users, movies and hours of each taste.
model.plot()

# %% Are they the tastes that made the log?
component_of_user = np.argmax(model.factors[0] * model.weights, axis=1)
pairs = np.zeros((TASTES, TASTES), int)
np.add.at(pairs, (taste_of_user, component_of_user), 1)
agreement = pairs.max(axis=1).sum() / USERS
print(f"{100 * agreement:.1f} % of the users are in the component of their taste")
assert agreement > 0.95

# %% What a user has not seen, and would like at eight in the evening.
somebody, evening = 17, 20
seen = set(store[somebody].coords[:, 0].tolist())
unseen = np.array([m for m in range(MOVIES) if m not in seen])
places = np.stack([np.full(len(unseen), somebody), unseen, np.full(len(unseen), evening)], axis=1)
best = unseen[np.argsort(-model.values_at(places))[:5]]
print(f"user {somebody} would like {best.tolist()}")

# %% Keep the model.
model.save(directory / "tastes.npz")
assert blco.load(directory / "tastes.npz").fit == model.fit
