//! Random programs against a model, under option sets that must all agree: puts, deletes, batches,
//! writes that no log holds, families that come and go, snapshots and iterators that are held while
//! all else goes on, reopening, and processes that are killed.
//!
//! `COLLIE_RUNS=200 COLLIE_OPS=5000 cargo test -p collie-db --test model` is the long form;
//! `COLLIE_SEED=N COLLIE_OPS=M` replays one run: all but the moments at which processes are killed.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

#[path = "../common/mod.rs"]
mod common;
mod kill;
mod program;
mod sets;
mod store;

use common::Rng;
use program::{Model, Program, Step};
use store::Store;

/// Prints how to run a program again where a test panics.
struct Replay {
    seed: u64,
    ops: u64,
}

impl Drop for Replay {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Self { seed, ops } = self;
            #[expect(clippy::print_stderr, reason = "a test's failure")]
            {
                eprintln!("replay: COLLIE_SEED={seed} COLLIE_OPS={ops} cargo test -p collie-db --test model");
            }
        }
    }
}

#[test]
fn all_option_sets_show_what_the_model_shows() {
    let ops = common::number("COLLIE_OPS").unwrap_or(200);
    let mut kills = kill::Figures::default();
    let seeds = common::seeds(20);
    let runs = seeds.len();
    for seed in seeds {
        let _replay = Replay { seed, ops };
        let dir = common::fast_dir();
        let place = kill::Place::new(dir.path(), seed, ops);
        let mut stores: Vec<_> = sets::all(&place.rings)
            .into_iter()
            .enumerate()
            .map(|(number, set)| Store::open(set, &place.store(number)))
            .collect();
        let model = run(&place, &mut stores, &mut kills);
        // Most of the time goes here, so by default not for every seed.
        if seed % 4 == 1 || common::number("COLLIE_RUNS").is_some() {
            settle(&place, &mut stores, &model);
        }
    }
    println!("figures: {runs} programs of {ops} steps; {kills}");
}

/// Runs a program on all stores; what they should show then.
fn run(place: &kill::Place, stores: &mut [Store], kills: &mut kill::Figures) -> Model {
    let mut model = Model::new();
    let mut program = Program::new(place.seed, place.ops);
    let mut moments = Rng::new(place.seed ^ 0x6b69_6c6c);
    let (mut n, mut kill) = (0, 0);
    while n < place.ops {
        let step = program.next(&model);
        n += 1;
        model.apply(&step);
        for store in stores.iter_mut() {
            store.apply(&step);
            let context = format!("{} at step {n}", store.set.name);
            store.check(&step, &model, &context);
        }
        if let Step::Kill = step {
            let stretch = program.stretch(&mut model);
            for (set, store) in stores.iter_mut().enumerate() {
                kill::strike(place, (set, kill), store, &stretch, &mut moments, kills);
            }
            n += stretch.steps.len() as u64;
            kill += 1;
        }
    }
    model
}

/// Recovered under the next set's options, flushed, and compacted: nothing may change any more.
fn settle(place: &kill::Place, stores: &mut [Store], model: &Model) {
    let sets = sets::all(&place.rings);
    for (number, store) in stores.iter_mut().enumerate() {
        let next = sets.get(number + 1).unwrap_or(&sets[0]);
        store.reopen_as(&next.options);
        for settled in ["recovered", "flushed", "compacted"] {
            match settled {
                "flushed" => store.db().flush().unwrap(),
                "compacted" => store.db().compact().unwrap(),
                _ => {}
            }
            let context = format!("{} as {}, {settled}", store.set.name, next.name);
            store.check_all(&model.families, &context);
        }
    }
}
