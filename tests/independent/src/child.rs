//! The process that has the store open, and is killed.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, RwLock};
use std::time::Duration;

use collie_db::{Db, Error, RowOwner};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::events::Event;
use crate::forms::{Tried, Trouble};
use crate::plan::Plan;
use crate::worker::{Worker, disturb};
use crate::world::{Out, World};

#[derive(clap::Args, Clone, Debug)]
pub struct ChildArgs {
    #[arg(long)]
    pub dir: PathBuf,
    #[arg(long)]
    pub plan: u64,
    /// The seed of what is done this time.
    #[arg(long)]
    pub seed: u64,
    /// Numbers of transactions begin here.
    #[arg(long)]
    pub first_tx: u64,
    /// Turns of each thread between two opens.
    #[arg(long)]
    pub turns: u32,
    /// How often the store is opened; it is closed in order in between.
    #[arg(long)]
    pub opens: u32,
    #[arg(long)]
    pub changing_guards: bool,
}

pub fn run(args: &ChildArgs) -> i32 {
    let out = Arc::new(Out);
    let plan = Arc::new(Plan::new(args.plan));
    let mut rng = SmallRng::seed_from_u64(args.seed);
    let mut next_tx = args.first_tx;
    for _ in 0..args.opens {
        match epoch(args, &plan, &out, &mut rng, &mut next_tx) {
            Ok(()) => {}
            Err(Trouble::Wrong(text)) => {
                out.violation(text);
                return 1;
            }
            Err(Trouble::Store(error)) => {
                out.violation(format!("the store fails: {error}"));
                return 1;
            }
        }
    }
    out.send(&Event::Done);
    0
}

fn epoch(
    args: &ChildArgs,
    plan: &Arc<Plan>,
    out: &Arc<Out>,
    rng: &mut SmallRng,
    next_tx: &mut u64,
) -> Tried<()> {
    let options = plan.options(rng, PathBuf::from("/dev/shm"));
    out.send(&Event::Opening);
    let db = Db::open(args.dir.join("store"), options.clone())?;
    out.send(&Event::Opened {
        visible: db.visible(),
    });
    let mut families = Vec::new();
    for name in &plan.families {
        let family = match db.family(name) {
            Some(family) => family,
            None => db.create_family(name, plan.family_options.clone())?,
        };
        families.push(family);
    }
    let world = Arc::new(World {
        db,
        plan: Arc::clone(plan),
        options,
        out: Arc::clone(out),
        families,
        passing: RwLock::default(),
        steps: AtomicU64::new(0),
        next_tx: AtomicU64::new(*next_tx),
        flush_in_transactions: rng.random_ratio(1, 2),
        changing_guards: args.changing_guards,
        lock_timeouts: match rng.random_range(0..3) {
            0 => vec![Duration::from_millis(2)],
            1 => vec![Duration::from_millis(2), Duration::from_millis(100)],
            _ => vec![Duration::from_secs(1)],
        },
    });
    world.adopt();
    let mut state = world.state(rng.random())?;
    let passing = world
        .passing
        .read()
        .map_err(|_| Trouble::Wrong("a thread panicked".into()))?;
    let there = passing
        .iter()
        .map(|one| (one.family.name().to_owned(), one.family.id()))
        .collect();
    drop(passing);
    out.send(&Event::State {
        lists: state.clone().into_iter().collect(),
        families: there,
    });
    let longest = *crate::plan::pick(rng, &[0, 20, 20, 60]);
    world.prepare(&state, longest)?;
    state.retain(|id, elements| elements.len() <= longest || crate::plan::is_passing(*id));
    let running = AtomicU32::new(plan.threads);
    let workers: Vec<_> = (0..plan.threads)
        .map(|thread| Worker::new(&world, thread, SmallRng::seed_from_u64(rng.random()), &state))
        .collect();
    let disturber = SmallRng::seed_from_u64(rng.random());
    let panicked = std::thread::scope(|scope| {
        scope.spawn(|| disturb(&world, disturber, &running));
        let threads: Vec<_> = workers
            .into_iter()
            .map(|worker| {
                let running = &running;
                scope.spawn(move || {
                    let ended =
                        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| worker.run(args.turns)));
                    // Release: pairs with the load in `disturb`.
                    running.fetch_sub(1, Ordering::Release);
                    ended.is_err()
                })
            })
            .collect();
        threads.into_iter().any(|thread| thread.join().unwrap_or(true))
    });
    if panicked {
        out.violation("a thread panicked");
    }
    nothing_is_left(&world);
    *next_tx = world.next_tx.load(Ordering::Relaxed);
    let world = Arc::into_inner(world).ok_or(Trouble::Wrong("a thread is left".into()))?;
    drop(world.families);
    drop(world.passing);
    if rng.random_ratio(3, 4) {
        world.db.close()?;
    } else {
        drop(world.db);
    }
    out.send(&Event::End { closed: true });
    Ok(())
}

/// No transaction, lock or snapshot outlives its owner.
fn nothing_is_left(world: &World) {
    let out = &world.out;
    let open = world.db.transactions();
    if !open.is_empty() {
        out.violation(format!("transactions are left: {open:?}"));
    }
    let mut owner: RowOwner = world.db.row_owner("the last");
    for name in world.db.families() {
        let Some(family) = world.db.family(&name) else {
            continue;
        };
        match world
            .db
            .lock_families(&mut owner, [&family], Duration::from_secs(2))
        {
            Ok(locks) => drop(locks),
            Err(error @ Error::LockTimeout { .. }) => out.violation(format!("a lock is left: {error}")),
            Err(error) => out.violation(format!("a family cannot be locked: {error}")),
        }
    }
    let snapshots = world.db.stats().snapshots;
    if snapshots > 0 {
        out.violation(format!("{snapshots} snapshots are left"));
    }
}
