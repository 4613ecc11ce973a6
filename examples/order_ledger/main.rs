//! A shop: accounts, stock, orders and a ledger in families of their own, changed by transactions
//! of both kinds from several threads at once, and an audit at the end.
//!
//! ```text
//! cargo run --example order_ledger            # in a temporary directory
//! cargo run --example order_ledger -- DIR     # in DIR, which keeps the shop for the next run
//! ```
//!
//! * `shop.rs`: the rows, and what each transaction reads and writes.
//! * `audit.rs`: what must hold whatever happened.

#![expect(clippy::print_stdout, reason = "a program for the terminal")]

mod audit;
mod shop;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, anyhow, ensure};
use collie_db::{Concurrency, Db, Isolation, Options, TransactionOptions};

use audit::{Books, audit};
use shop::{Answer, CUSTOMERS, ITEMS, Sale, Shop, ShopError};

/// Two of each kind.
const THREADS: u64 = 4;
/// Orders that each thread places.
const ORDERS: u64 = 200;
/// What comes in at the beginning of a run: pieces of each item, and cents of each customer. Not
/// enough for all orders.
const DELIVERY: i64 = 420;
const DEPOSIT: i64 = 550_000;

/// What the threads of one kind did.
#[derive(Debug, Default)]
struct Tally {
    placed: AtomicU64,
    sold_out: AtomicU64,
    no_credit: AtomicU64,
    paid: AtomicU64,
}

fn main() -> anyhow::Result<()> {
    // Declared before the store, and so removed after it.
    let temporary;
    let dir = match std::env::args_os().nth(1) {
        Some(dir) => PathBuf::from(dir),
        None => {
            temporary = tempfile::tempdir().context("cannot make a temporary directory")?;
            temporary.path().join("shop")
        }
    };
    let db = Db::open(&dir, Options::default())
        .with_context(|| format!("cannot open the store in {}", dir.display()))?;
    let shop = Shop::new(db)?;
    let run = shop.next_run()?;
    println!(
        "{}, run {run}: {THREADS} threads place {ORDERS} orders each, {} customers, {} items",
        dir.display(),
        CUSTOMERS.len(),
        ITEMS.len()
    );
    for customer in CUSTOMERS {
        shop.deposit(customer, DEPOSIT)?;
    }
    for (item, _) in ITEMS {
        shop.deliver(item, DELIVERY)?;
    }

    let kinds = [Concurrency::Pessimistic, Concurrency::Optimistic];
    let tallies = [Tally::default(), Tally::default()];
    std::thread::scope(|scope| {
        let started: Vec<_> = (0..THREADS)
            .zip(kinds.iter().zip(&tallies).cycle())
            .map(|(thread, (kind, tally))| {
                let shop = &shop;
                scope.spawn(move || serve(shop, run, thread, *kind, tally))
            })
            .collect();
        started.into_iter().try_for_each(|thread| {
            let ended = thread.join().map_err(|_| anyhow!("a thread panicked"))?;
            Ok::<_, anyhow::Error>(ended?)
        })
    })?;

    let books = audit(&shop)?;
    report(&shop.db, &tallies, &books);
    for wrong in &books.wrong {
        println!("WRONG: {wrong}");
    }
    ensure!(
        books.wrong.is_empty(),
        "{} things do not add up",
        books.wrong.len()
    );
    println!("All of it adds up.");
    // A store closes when its last handle is dropped, too, but only `close` returns an error.
    let db = shop.db.clone();
    drop(shop);
    db.close()?;
    Ok(())
}

/// One of so many orders is not followed by a payment.
const ON_CREDIT_EVERY: u64 = 4;

/// One thread's customers: they order, and most of them pay something then.
fn serve(shop: &Shop, run: u64, thread: u64, kind: Concurrency, tally: &Tally) -> Result<(), ShopError> {
    let options = TransactionOptions {
        concurrency: kind,
        isolation: Isolation::Serializable,
        name: format!("counter {thread}"),
        ..TransactionOptions::default()
    };
    let mut dice = Dice::new(run, thread);
    for number in 0..ORDERS {
        let sale = dice.sale();
        // Chosen once, before the first attempt: however often the order is tried, it is the same
        // one.
        let order = format!("{run}-{thread}-{number:03}");
        let counter = match shop.place(&order, &sale, &options)? {
            Answer::Placed => &tally.placed,
            Answer::SoldOut => &tally.sold_out,
            Answer::NoCredit => &tally.no_credit,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        let pays = number % ON_CREDIT_EVERY != 0;
        if pays && shop.pay(&sale.customer, &options)? {
            tally.paid.fetch_add(1, Ordering::Relaxed);
        }
    }
    Ok(())
}

fn report(db: &Db, tallies: &[Tally], books: &Books) {
    println!(
        "\n{:<12} {:>7} {:>9} {:>10} {:>6}",
        "", "placed", "sold out", "no credit", "paid"
    );
    for (name, tally) in ["pessimistic", "optimistic"].iter().zip(tallies) {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        println!(
            "{name:<12} {:>7} {:>9} {:>10} {:>6}",
            count(&tally.placed),
            count(&tally.sold_out),
            count(&tally.no_credit),
            count(&tally.paid),
        );
    }
    let met = db.stats().transactions;
    println!(
        "run again until they committed: {} conflicts, {} deadlocks, {} timeouts\n",
        met.conflicts, met.deadlocks, met.lock_timeouts
    );
    println!(
        "ledger: {} entries without a gap; {} orders, {} of them not paid yet",
        books.entries,
        books.orders.len(),
        books.unpaid.len()
    );
    println!(
        "money:  {} paid in = {} in customers' accounts + {} in the till",
        money(books.deposited),
        money(books.customers()),
        money(books.till())
    );
    println!(
        "stock:  {} pieces delivered = {} on hand + {} sold",
        books.delivered,
        books.on_hand(),
        books.sold
    );
}

fn money(cents: i64) -> String {
    format!("{}.{:02}", cents / 100, cents % 100)
}

/// Random numbers, the same for each run of that number: Marsaglia's xorshift.
struct Dice(u64);

impl Dice {
    fn new(run: u64, thread: u64) -> Self {
        Self((run << 8 | thread).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 32) as usize % limit
    }

    fn sale(&mut self) -> Sale {
        let mut lines = BTreeMap::new();
        let mut cents = 0;
        for _ in 0..=self.below(3) {
            let (item, price) = ITEMS[self.below(ITEMS.len())];
            let pieces = 1 + self.below(2) as i64;
            cents += pieces * price;
            *lines.entry(item.to_owned()).or_default() += pieces;
        }
        Sale {
            customer: CUSTOMERS[self.below(CUSTOMERS.len())].to_owned(),
            lines,
            cents,
        }
    }
}
