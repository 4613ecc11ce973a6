//! What must hold of the orders, whatever kind of transaction entered them.
//!
//! | what | why it could fail |
//! |---|---|
//! | a district's orders are numbered from 1 without a gap, and its counter stands at the next | two took one number, or one was lost |
//! | each order has the lines that it says, and no line is without its order | a commit was there in part |
//! | what was taken of an item is what the lines took | an update of its row was lost |
//! | a customer's number of orders and last order are those of the orders | likewise |
//! | there are as many orders as commits | one was acknowledged and lost, or done twice |

use std::collections::BTreeMap;

use collie_db::{Family, Iter, Snapshot};

use super::rows::{Customer, District, Line, Order, Row, Stock, customer_of, line_key, number_of, order_of};
use super::{Store, inconsistent};
use crate::error::BenchError;

/// What the orders and their lines add up to.
#[derive(Default)]
struct Sums {
    orders: u64,
    /// Of each district, which has so many orders.
    districts: BTreeMap<u32, District>,
    customers: BTreeMap<(u32, u32), Customer>,
    stock: BTreeMap<u32, Stock>,
}

impl Store {
    /// Compares the orders with everything that was counted while they were placed, in one
    /// snapshot.
    pub(super) fn check(&self, written: u64) -> Result<(), BenchError> {
        let snapshot = self.db.snapshot();
        let sums = self.sums(&snapshot)?;
        if sums.orders != written {
            return inconsistent(format!(
                "{written} orders were committed, and there are {}",
                sums.orders
            ));
        }
        let first = District { next_order: 1 };
        compare(&snapshot, &self.districts, number_of, sums.districts, first)?;
        compare(
            &snapshot,
            &self.customers,
            customer_of,
            sums.customers,
            Customer::default(),
        )?;
        compare(&snapshot, &self.stock, number_of, sums.stock, Stock::default())
    }

    /// Reads orders and lines side by side: both are sorted by district and number.
    fn sums(&self, snapshot: &Snapshot) -> Result<Sums, BenchError> {
        let mut sums = Sums::default();
        let mut lines = snapshot.iter(&self.lines)?;
        for row in snapshot.iter(&self.orders)? {
            let (key, order) = row?;
            let (district, number) = order_of(&key)?;
            let order = Order::decode(&order)?;
            sums.orders += 1;
            let counter = sums
                .districts
                .entry(district)
                .or_insert(District { next_order: 1 });
            if counter.next_order != number {
                return inconsistent(format!(
                    "district {district} has the order {number} where {} should come",
                    counter.next_order
                ));
            }
            counter.next_order += 1;
            let customer = sums.customers.entry((district, order.customer)).or_default();
            customer.orders += 1;
            customer.last_order = number;
            for place in 0..order.lines {
                let Some(line) = next_line(&mut lines, &line_key(district, number, place))? else {
                    return inconsistent(format!(
                        "order {number} of district {district} should have {} lines, and line {place} is not there",
                        order.lines
                    ));
                };
                sums.stock.entry(line.item).or_default().taken += u64::from(line.pieces);
            }
        }
        match lines.next() {
            None => Ok(sums),
            Some(line) => {
                let (district, number) = order_of(&line?.0)?;
                inconsistent(format!(
                    "order {number} of district {district} is not there, or has more lines than it says"
                ))
            }
        }
    }
}

/// The next line, if it is the one that must come.
fn next_line(lines: &mut Iter, key: &[u8]) -> Result<Option<Line>, BenchError> {
    match lines.next().transpose()? {
        Some((found, line)) if *found == *key => Line::decode(&line).map(Some),
        _ => Ok(None),
    }
}

/// Compares a family's rows with what the orders make of them; `none`, where no order did.
fn compare<K: Ord + std::fmt::Debug, R: Row + PartialEq + Copy + std::fmt::Debug>(
    snapshot: &Snapshot,
    family: &Family,
    key_of: fn(&[u8]) -> Result<K, BenchError>,
    mut expected: BTreeMap<K, R>,
    none: R,
) -> Result<(), BenchError> {
    for row in snapshot.iter(family)? {
        let (key, row) = row?;
        let key = key_of(&key)?;
        let (row, sum) = (R::decode(&row)?, expected.remove(&key).unwrap_or(none));
        if row != sum {
            return inconsistent(format!(
                "{}, {key:?}: the row is {row:?}, the orders make it {sum:?}",
                family.name()
            ));
        }
    }
    match expected.pop_first() {
        None => Ok(()),
        Some((key, sum)) => inconsistent(format!(
            "{}, {key:?}: there is no row, the orders make it {sum:?}",
            family.name()
        )),
    }
}

#[cfg(test)]
mod tests {
    use collie_db::{Db, Options, TransactionOptions};

    use super::super::rows::{customer_key, order_key, stock_key};
    use super::*;

    /// Three orders in two districts, entered as the benchmark does.
    fn store() -> (tempfile::TempDir, Store) {
        let dir = tempfile::tempdir().unwrap();
        let db = Db::open(dir.path().join("store"), Options::default()).unwrap();
        let store = Store::new(&db).unwrap();
        store.fill(2, 10).unwrap();
        let line = |item, pieces| Line { item, pieces };
        for (district, customer, lines) in [
            (0, 7, vec![line(1, 2), line(3, 4)]),
            (1, 8, vec![line(3, 1)]),
            (0, 7, vec![line(9, 5)]),
        ] {
            let tx = db.transaction(TransactionOptions::serializable()).unwrap();
            store.place(&tx, district, customer, &lines).unwrap();
            tx.commit().unwrap();
        }
        (dir, store)
    }

    #[test]
    fn what_was_entered_adds_up_and_is_found() {
        let (_dir, store) = store();
        store.check(3).unwrap();
        let tx = store.db.transaction(TransactionOptions::serializable()).unwrap();
        for customer in [7, 8, 9] {
            store.look_up(&tx, 0, customer).unwrap();
        }
    }

    #[test]
    fn everything_that_does_not_add_up_is_an_error_that_names_it() {
        type Harm = fn(&Store) -> collie_db::Result<collie_db::Lsn>;
        let harms: [(&str, Harm); 11] = [
            ("has the order 2 where 1 should come", |s| {
                s.orders.delete(order_key(0, 1))
            }),
            ("2 lines, and line 1 is not there", |s| {
                s.lines.delete(line_key(0, 1, 1))
            }),
            ("2 lines, and line 0 is not there", |s| {
                s.lines.delete(line_key(0, 1, 0))
            }),
            ("more lines than it says", |s| {
                let line = Line { item: 1, pieces: 1 };
                s.lines.put(line_key(1, 1, 1), line.encode())
            }),
            ("3 orders were committed, and there are 2", |s| {
                s.lines.delete(line_key(1, 1, 0))?;
                s.orders.delete(order_key(1, 1))
            }),
            ("districts, 1: the row is", |s| {
                s.districts
                    .put(1_u32.to_be_bytes(), District { next_order: 3 }.encode())
            }),
            ("districts, 0: there is no row", |s| {
                s.districts.delete(0_u32.to_be_bytes())
            }),
            ("stock, 3: the row is Stock { taken: 4 }", |s| {
                s.stock.put(stock_key(3), Stock { taken: 4 }.encode())
            }),
            ("stock, 9: there is no row", |s| s.stock.delete(stock_key(9))),
            ("customers, (0, 7): the row is", |s| {
                let lost = Customer {
                    orders: 1,
                    last_order: 2,
                };
                s.customers.put(customer_key(0, 7), lost.encode())
            }),
            ("is no item of the stock", |s| s.stock.put(stock_key(3), "x")),
        ];
        for (expected, harm) in harms {
            let (_dir, store) = store();
            harm(&store).unwrap();
            let error = store.check(3).unwrap_err().to_string();
            assert!(error.contains(expected), "{expected}: {error}");
        }
    }

    #[test]
    fn a_look_up_notices_an_order_that_is_there_in_part() {
        for (expected, harm) in [
            (
                "which a look-up did not find",
                &(|s: &Store| s.orders.delete(order_key(0, 2))) as &dyn Fn(&Store) -> _,
            ),
            ("has 1 lines, and a look-up found 0", &|s| {
                s.lines.delete(line_key(0, 2, 0))
            }),
        ] {
            let (_dir, store) = store();
            harm(&store).unwrap();
            let tx = store.db.transaction(TransactionOptions::default()).unwrap();
            let error = store.look_up(&tx, 0, 7).unwrap_err().to_string();
            assert!(error.contains(expected), "{expected}: {error}");
        }
    }
}
