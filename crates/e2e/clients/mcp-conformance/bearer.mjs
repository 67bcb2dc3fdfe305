// Adds a token to every request of the conformance suite, which has no option for one:
//
//   MCP_TOKEN=… node --import ./bearer.mjs node_modules/@modelcontextprotocol/conformance/dist/index.js …
//
// `fetch` of Node and `request` of undici share one dispatcher.
import { Agent, setGlobalDispatcher } from 'undici'

const authorization = `Bearer ${process.env.MCP_TOKEN}`
const withToken = (dispatch) => (options, handler) => {
  const { headers } = options
  const all = Array.isArray(headers) ? [...headers, 'authorization', authorization] : { ...headers, authorization }
  return dispatch({ ...options, headers: all }, handler)
}
setGlobalDispatcher(new Agent().compose(withToken))
