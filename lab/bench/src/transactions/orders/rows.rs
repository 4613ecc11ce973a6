//! Rows of the order entry, and their bytes. Keys are numbers, big-endian, so that rows lie in
//! their order; values are numbers, little-endian, and then zeros up to the size that such a row
//! would have.

use crate::error::BenchError;

/// A district's, a customer's and an item's row would hold names, addresses, descriptions.
const LONG_ROW: usize = 200;
/// An order's and a line's hold little more than numbers.
const SHORT_ROW: usize = 40;

pub(super) trait Row: Sized {
    fn encode(&self) -> Vec<u8>;
    /// # Errors
    /// [`BenchError::Inconsistent`] where the row is too short to be one.
    fn decode(row: &[u8]) -> Result<Self, BenchError>;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct District {
    /// The number of its next order; the first is 1.
    pub(super) next_order: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Customer {
    pub(super) orders: u64,
    /// The number of the last one in the customer's district; 0 for none.
    pub(super) last_order: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Stock {
    /// Pieces that orders took.
    pub(super) taken: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Order {
    pub(super) customer: u32,
    pub(super) lines: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::transactions) struct Line {
    pub(super) item: u32,
    pub(super) pieces: u32,
}

pub(super) fn customer_key(district: u32, customer: u32) -> [u8; 8] {
    (u64::from(district) << 32 | u64::from(customer)).to_be_bytes()
}

pub(super) fn stock_key(item: u32) -> [u8; 4] {
    item.to_be_bytes()
}

pub(super) fn order_key(district: u32, number: u64) -> [u8; 12] {
    let mut key = [0; 12];
    let (of_district, of_number) = key.split_at_mut(4);
    of_district.copy_from_slice(&district.to_be_bytes());
    of_number.copy_from_slice(&number.to_be_bytes());
    key
}

/// An order's key, and the line's place in it.
pub(super) fn line_key(district: u32, number: u64, place: u32) -> [u8; 16] {
    let mut key = [0; 16];
    let (of_order, of_place) = key.split_at_mut(12);
    of_order.copy_from_slice(&order_key(district, number));
    of_place.copy_from_slice(&place.to_be_bytes());
    key
}

/// The order that an order's or a line's key belongs to: district and number.
pub(super) fn order_of(key: &[u8]) -> Result<(u32, u64), BenchError> {
    let district = key.first_chunk().map(|bytes| u32::from_be_bytes(*bytes));
    let number = key.get(4..).and_then(<[u8]>::first_chunk);
    let number = number.map(|bytes| u64::from_be_bytes(*bytes));
    district.zip(number).ok_or_else(|| short("order's key", key))
}

/// The number that a key consists of.
pub(super) fn number_of(key: &[u8]) -> Result<u32, BenchError> {
    let number = key.try_into().map(u32::from_be_bytes);
    number.map_err(|_| short("key", key))
}

/// The district and the customer that a key consists of.
pub(super) fn customer_of(key: &[u8]) -> Result<(u32, u32), BenchError> {
    let both = key.try_into().map(u64::from_be_bytes);
    let both = both.map_err(|_| short("customer's key", key))?;
    Ok(((both >> 32) as u32, both as u32))
}

fn short(what: &'static str, row: &[u8]) -> BenchError {
    BenchError::Inconsistent {
        what: format!("{row:?} is no {what}"),
    }
}

/// The numbers that a row begins with.
fn numbers<const N: usize>(row: &[u8], what: &'static str) -> Result<[u64; N], BenchError> {
    let mut numbers = [0; N];
    let mut words = row.chunks_exact(8);
    for number in &mut numbers {
        let word = words.next().and_then(<[u8]>::first_chunk);
        *number = u64::from_le_bytes(*word.ok_or_else(|| short(what, row))?);
    }
    Ok(numbers)
}

fn padded<const N: usize>(numbers: [u64; N], size: usize) -> Vec<u8> {
    let mut row = Vec::with_capacity(size);
    numbers
        .iter()
        .for_each(|number| row.extend_from_slice(&number.to_le_bytes()));
    row.resize(size, 0);
    row
}

impl Row for District {
    fn encode(&self) -> Vec<u8> {
        padded([self.next_order], LONG_ROW)
    }
    fn decode(row: &[u8]) -> Result<Self, BenchError> {
        numbers(row, "district").map(|[next_order]| Self { next_order })
    }
}

impl Row for Customer {
    fn encode(&self) -> Vec<u8> {
        padded([self.orders, self.last_order], LONG_ROW)
    }
    fn decode(row: &[u8]) -> Result<Self, BenchError> {
        numbers(row, "customer").map(|[orders, last_order]| Self { orders, last_order })
    }
}

impl Row for Stock {
    fn encode(&self) -> Vec<u8> {
        padded([self.taken], LONG_ROW)
    }
    fn decode(row: &[u8]) -> Result<Self, BenchError> {
        numbers(row, "item of the stock").map(|[taken]| Self { taken })
    }
}

impl Row for Order {
    fn encode(&self) -> Vec<u8> {
        padded([self.customer.into(), self.lines.into()], SHORT_ROW)
    }
    fn decode(row: &[u8]) -> Result<Self, BenchError> {
        numbers(row, "order").map(|[customer, lines]| Self {
            customer: customer as u32,
            lines: lines as u32,
        })
    }
}

impl Row for Line {
    fn encode(&self) -> Vec<u8> {
        padded([self.item.into(), self.pieces.into()], SHORT_ROW)
    }
    fn decode(row: &[u8]) -> Result<Self, BenchError> {
        numbers(row, "line").map(|[item, pieces]| Self {
            item: item as u32,
            pieces: pieces as u32,
        })
    }
}
