// An independent client on stdio: the TypeScript SDK against the real server
// (handshake, list, a failing call whose error must be readable) and against
// the fixtures (progress). Usage: node client.mjs SERVER FIXTURES
import assert from "node:assert/strict";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";

const [server, fixtures] = process.argv.slice(2);
let checks = 0;
const check = (name, ok, detail) => {
  assert.ok(ok, `${name}: ${JSON.stringify(detail)}`);
  checks++;
  console.log(`✓ ${name}`);
};

const connect = async (command, args) => {
  const transport = new StdioClientTransport({ command, args, env: process.env, stderr: "ignore" });
  const client = new Client({ name: "conformance-check", version: "1" });
  await client.connect(transport);
  return client;
};

{
  const client = await connect(server, []);
  check("initialize", client.getServerVersion()?.name === "sandboxforge", client.getServerVersion());
  const { tools } = await client.listTools();
  check("tools/list", tools.some((t) => t.name === "run_command"), tools.map((t) => t.name));
  check("every tool has an output schema and annotations",
    tools.every((t) => t.outputSchema && t.annotations && t.title && t.description), tools.map((t) => t.name));
  const failed = await client.callTool({ name: "run_command", arguments: { instance_id: "inst_00000000", command: "true" } });
  const said = JSON.parse(failed.content[0].text);
  check("a failing call shows its error", failed.isError === true && said.error_code === "INSTANCE_NOT_FOUND", failed);
  check("the error is in _meta as well", failed._meta?.error_code === said.error_code, failed._meta);
  check("a failing call has no structured content", failed.structuredContent === undefined, failed);
  const wrong = await client.callTool({ name: "run_command", arguments: { instance_id: "inst_00000000", command: 7, bogus: 1 } });
  const why = JSON.parse(wrong.content[0].text);
  check("wrong arguments are named", why.error_code === "INVALID_ARGUMENT" && why.message.includes("command") && why.message.includes("bogus"), why);
  const listed = await client.callTool({ name: "list_instances", arguments: {} });
  check("a result passes the client's schema check", Array.isArray(listed.structuredContent?.instances), listed);
  await assert.rejects(client.callTool({ name: "no_such_tool", arguments: {} }), (e) => e.code === -32602);
  check("an unknown tool is a protocol error", true);
  await client.close();
}
{
  const client = await connect(fixtures, ["-stdio"]);
  const seen = [];
  await client.callTool({ name: "test_tool_with_progress", arguments: {} }, undefined, { onprogress: (p) => seen.push(p.progress) });
  check("progress arrives in order", JSON.stringify(seen) === "[0,50,100]", seen);
  await client.close();
}
console.log(`client: ${checks} checks passed`);
