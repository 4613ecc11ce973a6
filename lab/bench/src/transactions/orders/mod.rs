//! `bench orders`: order entry. Most transactions place an order: they take the next number from
//! their district's counter, read a customer for update, take pieces from a few rows of the stock,
//! some of them hot, and insert the order and its lines. The others look up a customer's last
//! order. In the end everything must add up (`check.rs`).

mod check;
mod rows;

use collie_db::{
    Batch, Concurrency, Db, Durability, Error, Family, FamilyOptions, Isolation, Transaction,
    TransactionOptions, WriteOptions,
};
use serde::Serialize;

use super::{CommitKind, Load, TransactionResult, TransactionRun, percentage, range};
use crate::error::BenchError;
use crate::rng::Rng;
use rows::{Customer, District, Line, Order, Row, Stock, customer_key, line_key, order_key, stock_key};

/// Customers of one district.
const CUSTOMERS: u32 = 1_000;
/// Pieces of one line, at most.
const PIECES_MAX: u64 = 10;
/// Rows of one commit, when the store is filled.
const FILLED_AT_ONCE: usize = 10_000;
const DISTRICTS_MAX: u32 = 1_000;
const ITEMS_MAX: u32 = 1_000_000;
const LINES_MAX: u32 = 1_000;

/// What to measure.
#[derive(Debug, Clone)]
pub struct OrdersBench {
    /// Each has a counter that gives its orders their numbers, and 1,000 customers.
    pub districts: u32,
    /// Rows of the stock.
    pub items: u32,
    /// So many of them are hot.
    pub hot_items: u32,
    /// Lines out of a hundred that take one of those; the others take any of the rest.
    pub hot_share: u64,
    /// Lines of an order at most; each number from 1 on is as likely.
    pub lines: u32,
    /// Transactions out of a hundred that look up a customer's last order and write nothing.
    pub look_ups: u64,
    /// The kind of transaction.
    pub concurrency: Concurrency,
    /// What they may see of each other.
    pub isolation: Isolation,
    /// How it is run.
    pub run: TransactionRun,
}

/// One kind of commit: medians over the repeats.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct OrdersResult {
    /// The kind of transaction.
    pub concurrency: &'static str,
    /// What they might see of each other.
    pub isolation: &'static str,
    /// Counters that gave orders their numbers.
    pub districts: u32,
    /// Rows of the stock.
    pub items: u32,
    /// So many of them were hot.
    pub hot_items: u32,
    /// Lines out of a hundred that took one of those.
    pub hot_share: u64,
    /// Lines of an order at most.
    pub lines: u32,
    /// Transactions out of a hundred that wrote nothing.
    pub look_ups: u64,
    /// How it went.
    #[serde(flatten)]
    pub figures: TransactionResult,
}

impl OrdersBench {
    /// Measures; `begins` is called before each measurement.
    ///
    /// # Errors
    /// Options out of range, the store's errors, and orders that do not add up in the end.
    pub fn run(&self, begins: impl FnMut(CommitKind)) -> Result<Vec<OrdersResult>, BenchError> {
        let size = |option, value: u32, max: u32| range(option, value.into(), 1, max.into());
        size("districts", self.districts, DISTRICTS_MAX)?;
        size("items", self.items, ITEMS_MAX)?;
        size("lines", self.lines, LINES_MAX)?;
        percentage("hot-share", self.hot_share)?;
        percentage("look-ups", self.look_ups)?;
        let wrong = |problem: &str| {
            Err(BenchError::Options {
                option: "hot-items",
                problem: format!("{} of {} items {problem}", self.hot_items, self.items),
            })
        };
        if self.hot_items == 0 && self.hot_share > 0 {
            return wrong("are hot, and a share of the lines is to take one; set --hot-share 0");
        }
        if self.hot_items > self.items || (self.hot_items == self.items && self.hot_share < 100) {
            return wrong("are hot, which leaves none for the other lines");
        }
        let results = self.run.measure(self, begins)?;
        Ok(results.into_iter().map(|figures| self.result(figures)).collect())
    }

    fn result(&self, figures: TransactionResult) -> OrdersResult {
        OrdersResult {
            concurrency: match self.concurrency {
                Concurrency::Optimistic => "optimistic",
                _ => "pessimistic",
            },
            isolation: match self.isolation {
                Isolation::Serializable => "serializable",
                _ => "snapshot",
            },
            districts: self.districts,
            items: self.items,
            hot_items: self.hot_items,
            hot_share: self.hot_share,
            lines: self.lines,
            look_ups: self.look_ups,
            figures,
        }
    }
}

/// What one transaction does.
pub(super) enum Plan {
    Order {
        district: u32,
        customer: u32,
        /// Sorted by item, each once: all orders lock the stock's rows in the same order.
        lines: Vec<Line>,
    },
    LookUp {
        district: u32,
        customer: u32,
    },
}

/// The families.
pub(super) struct Store {
    db: Db,
    districts: Family,
    customers: Family,
    stock: Family,
    orders: Family,
    lines: Family,
}

impl Store {
    fn new(db: &Db) -> Result<Self, Error> {
        let family = |name| db.create_family(name, FamilyOptions::default());
        Ok(Self {
            db: db.clone(),
            districts: family("districts")?,
            customers: family("customers")?,
            stock: family("stock")?,
            orders: family("orders")?,
            lines: family("lines")?,
        })
    }

    /// Districts, customers and stock before the first order, durable on return.
    fn fill(&self, districts: u32, items: u32) -> Result<(), BenchError> {
        let of_districts = (0..districts).map(|district| {
            let row = District { next_order: 1 };
            (&self.districts, district.to_be_bytes().to_vec(), row.encode())
        });
        let customers = (0..districts).flat_map(|district| (0..CUSTOMERS).map(move |c| (district, c)));
        let of_customers = customers.map(|(district, customer)| {
            let key = customer_key(district, customer).to_vec();
            (&self.customers, key, Customer::default().encode())
        });
        let of_items = (0..items).map(|item| {
            let key = stock_key(item).to_vec();
            (&self.stock, key, Stock::default().encode())
        });
        let mut batch = Batch::new();
        for (family, key, value) in of_districts.chain(of_customers).chain(of_items) {
            batch.put(family, key, value)?;
            if batch.len() == FILLED_AT_ONCE {
                self.db
                    .write(std::mem::take(&mut batch), &WriteOptions::buffered())?;
            }
        }
        let end = self.db.write(batch, &WriteOptions::buffered())?;
        Ok(self.db.wait(end, Durability::Disk)?)
    }

    fn place(
        &self,
        tx: &Transaction,
        district: u32,
        customer: u32,
        lines: &[Line],
    ) -> Result<(), BenchError> {
        // First, for it is the hottest: with snapshot isolation a transaction whose first step
        // waits for a row sees what is there when its turn comes.
        let district_key = district.to_be_bytes();
        let mut counter: District = read_for_update(tx, &self.districts, &district_key)?;
        let number = counter.next_order;
        counter.next_order += 1;
        tx.put(&self.districts, district_key, counter.encode())?;
        let customer_key = customer_key(district, customer);
        let mut of_customer: Customer = read_for_update(tx, &self.customers, &customer_key)?;
        of_customer.orders += 1;
        of_customer.last_order = number;
        tx.put(&self.customers, customer_key, of_customer.encode())?;
        for line in lines {
            let key = stock_key(line.item);
            let mut stock: Stock = read_for_update(tx, &self.stock, &key)?;
            stock.taken += u64::from(line.pieces);
            tx.put(&self.stock, key, stock.encode())?;
        }
        let order = Order {
            customer,
            lines: lines.len() as u32,
        };
        tx.put(&self.orders, order_key(district, number), order.encode())?;
        for (place, line) in (0..).zip(lines) {
            tx.put(&self.lines, line_key(district, number, place), line.encode())?;
        }
        Ok(())
    }

    /// Reads a customer's last order with its lines, all of which must be there.
    fn look_up(&self, tx: &Transaction, district: u32, customer: u32) -> Result<(), BenchError> {
        let row = tx.get(&self.customers, customer_key(district, customer))?;
        let number = Customer::decode(row.as_deref().unwrap_or_default())?.last_order;
        if number == 0 {
            return Ok(());
        }
        let key = order_key(district, number);
        let Some(order) = tx.get(&self.orders, key)? else {
            return inconsistent(format!(
                "customer {customer} of district {district} has ordered {number} last, which a look-up did not find"
            ));
        };
        let expected = Order::decode(&order)?.lines as usize;
        let mut found = 0;
        for line in tx.prefix(&self.lines, key)? {
            Line::decode(&line?.1)?;
            found += 1;
        }
        if found != expected {
            return inconsistent(format!(
                "order {number} of district {district} has {expected} lines, and a look-up found {found}"
            ));
        }
        Ok(())
    }
}

fn read_for_update<R: Row>(tx: &Transaction, family: &Family, key: &[u8]) -> Result<R, BenchError> {
    let row = tx.get_for_update(family, key)?;
    R::decode(row.as_deref().unwrap_or_default())
}

fn inconsistent<T>(what: String) -> Result<T, BenchError> {
    Err(BenchError::Inconsistent { what })
}

impl Load for OrdersBench {
    type Store = Store;
    type Plan = Plan;

    fn prepare(&self, db: &Db) -> Result<Store, BenchError> {
        let store = Store::new(db)?;
        store.fill(self.districts, self.items)?;
        Ok(store)
    }

    fn options(&self) -> TransactionOptions {
        TransactionOptions {
            concurrency: self.concurrency,
            isolation: self.isolation,
            ..TransactionOptions::default()
        }
    }

    fn plan(&self, rng: &mut Rng, _thread: u64) -> Plan {
        let mut below = |limit: u32| rng.below(u64::from(limit)) as u32;
        let (district, customer) = (below(self.districts), below(CUSTOMERS));
        if rng.below(100) < self.look_ups {
            return Plan::LookUp { district, customer };
        }
        let count = 1 + rng.below(u64::from(self.lines));
        let mut lines: Vec<Line> = (0..count).map(|_| self.line(rng)).collect();
        lines.sort_by_key(|line| line.item);
        lines.dedup_by_key(|line| line.item);
        Plan::Order {
            district,
            customer,
            lines,
        }
    }

    fn attempt(&self, store: &Store, tx: &Transaction, plan: &Plan) -> Result<bool, BenchError> {
        match plan {
            Plan::Order {
                district,
                customer,
                lines,
            } => store.place(tx, *district, *customer, lines).map(|()| true),
            Plan::LookUp { district, customer } => store.look_up(tx, *district, *customer).map(|()| false),
        }
    }

    fn check(&self, store: &Store, written: u64) -> Result<(), BenchError> {
        store.check(written)
    }
}

impl OrdersBench {
    fn line(&self, rng: &mut Rng) -> Line {
        // The hot ones come first.
        let item = if rng.below(100) < self.hot_share {
            rng.below(u64::from(self.hot_items))
        } else {
            u64::from(self.hot_items) + rng.below(u64::from(self.items - self.hot_items))
        };
        Line {
            item: item as u32,
            pieces: 1 + rng.below(PIECES_MAX) as u32,
        }
    }
}
