// ioredis over TLS. See scripts/tls-clients.
//
// usage: client.js PORT CA WRONG_CA CERTIFICATE KEY
"use strict";
const fs = require("fs");
const Redis = require("ioredis");

const [port, ca, wrong, certificate, key] = process.argv.slice(2);

function connect(tls) {
  const client = new Redis({
    host: "127.0.0.1",
    port: Number(port),
    tls,
    lazyConnect: true,
    retryStrategy: null,
    maxRetriesPerRequest: 0,
  });
  // The errors that are waited for come from the calls.
  client.on("error", () => {});
  return client;
}

function check(what, holds) {
  if (!holds) {
    throw new Error(`ioredis: ${what} failed`);
  }
  console.log(`check ioredis: ${what}`);
}

// What a client says that cannot connect.
function refusal(client) {
  return new Promise((resolve) => {
    client.on("error", (error) => resolve(String(error.message)));
    client.connect().then(
      () => client.ping().then(() => resolve("no error"), (error) => resolve(String(error.message))),
      () => {},
    );
  });
}

async function main() {
  const client = connect({ ca: fs.readFileSync(ca) });
  await client.connect();
  check("SET", (await client.set("js", "1")) === "OK");
  check("GET", (await client.get("js")) === "1");

  const pipeline = client.pipeline();
  const expected = [];
  for (let i = 0; i < 100; i++) {
    pipeline.set(`js${i}`, i).get(`js${i}`);
    expected.push([null, "OK"], [null, String(i)]);
  }
  check("a pipeline", JSON.stringify(await pipeline.exec()) === JSON.stringify(expected));

  await client.watch("js");
  const transaction = await client.multi().incr("js").get("js").exec();
  check("a transaction", JSON.stringify(transaction) === JSON.stringify([[null, 2], [null, "2"]]));

  const large = Buffer.alloc(4 << 20, "collie");
  await client.set("large", large);
  check("a value of 4 MiB", large.equals(await client.getBuffer("large")));
  client.disconnect();

  const own = connect({
    ca: fs.readFileSync(ca),
    cert: fs.readFileSync(certificate),
    key: fs.readFileSync(key),
  });
  await own.connect();
  check("a client's certificate", (await own.get("js")) === "2");
  own.disconnect();

  const distrusted = await refusal(connect({ ca: fs.readFileSync(wrong) }));
  check(`a wrong CA is refused`, /certificate|self.signed|issuer/i.test(distrusted));
  const plain = await refusal(connect(undefined));
  check("a client without TLS is refused", plain.includes("This port speaks TLS only"));
}

main().then(
  () => process.exit(0),
  (error) => {
    console.error(error);
    process.exit(1);
  },
);
