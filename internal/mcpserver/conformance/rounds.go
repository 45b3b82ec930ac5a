//lint:file-ignore SA1019 the suite for 2025-11-25 exercises what 2026-07-28 deprecates

package main

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// From 2026-07-28 on a server asks by answering "input required"; the client
// calls again with the answers and the state that it was given.

// sealKey makes states that only this process can have issued.
var sealKey = func() []byte {
	k := make([]byte, 32)
	rand.Read(k) // never fails
	return k
}()

func mac(s string) string {
	h := hmac.New(sha256.New, sealKey)
	h.Write([]byte(s))
	return base64.RawURLEncoding.EncodeToString(h.Sum(nil))
}

func seal(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) + "." + mac(s) }

// unseal returns the sealed text; an empty state is valid and empty.
func unseal(state string) (string, error) {
	if state == "" {
		return "", nil
	}
	body, sum, _ := strings.Cut(state, ".")
	raw, err := base64.RawURLEncoding.DecodeString(body)
	if err != nil || !hmac.Equal([]byte(sum), []byte(mac(string(raw)))) {
		return "", &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "requestState is not one that this server issued"}
	}
	return string(raw), nil
}

func form(message, field, kind string) *mcp.ElicitParams {
	return &mcp.ElicitParams{Message: message, RequestedSchema: json.RawMessage(
		`{"type":"object","properties":{"` + field + `":{"type":"` + kind + `"}},"required":["` + field + `"]}`)}
}

// filled is the field of an accepted form, "" if there is none.
func filled(r mcp.InputResponseMap, key, field string) string {
	if e, ok := r[key].(*mcp.ElicitResult); ok && e != nil && e.Action == "accept" {
		s, _ := e.Content[field].(string)
		return s
	}
	return ""
}

func accepted(r mcp.InputResponseMap, key string) bool {
	e, ok := r[key].(*mcp.ElicitResult)
	return ok && e != nil && e.Action == "accept" && e.Content != nil
}

// sampled is what the client's model said.
func sampled(r mcp.InputResponseMap, key string) (string, bool) {
	res, ok := r[key].(*mcp.CreateMessageWithToolsResult)
	if !ok || res == nil {
		return "", false
	}
	for _, c := range res.Content {
		if t, ok := c.(*mcp.TextContent); ok {
			return t.Text, true
		}
	}
	return "", true
}

func question(s string) *mcp.CreateMessageParams {
	return &mcp.CreateMessageParams{MaxTokens: 100, Messages: []*mcp.SamplingMessage{{Role: "user", Content: &mcp.TextContent{Text: s}}}}
}

func ask(state string, in mcp.InputRequestMap) *mcp.CallToolResult {
	return &mcp.CallToolResult{InputRequests: in, RequestState: state}
}

func addRoundTools(m *mcp.Server) {
	name := func() *mcp.ElicitParams { return form("What is your name?", "name", "string") }
	add(m, "test_input_required_result_elicitation", "Asks the user's name", func(_ context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		if n := filled(req.Params.InputResponses, "user_name", "name"); n != "" {
			return text("Hello, %s!", n), nil
		}
		return ask("", mcp.InputRequestMap{"user_name": name()}), nil
	})
	add(m, "test_input_required_result_sampling", "Asks the client's model", func(_ context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		if said, ok := sampled(req.Params.InputResponses, "capital_question"); ok {
			return text("The model said: %s", said), nil
		}
		return ask("", mcp.InputRequestMap{"capital_question": question("What is the capital of France?")}), nil
	})
	add(m, "test_input_required_result_list_roots", "Asks the client's roots", func(_ context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		if r, ok := req.Params.InputResponses["client_roots"].(*mcp.ListRootsResult); ok && r != nil {
			return text("%d root(s)", len(r.Roots)), nil
		}
		return ask("", mcp.InputRequestMap{"client_roots": &mcp.ListRootsParams{}}), nil
	})
	confirm := func(_ context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		state, err := unseal(req.Params.RequestState)
		if err != nil {
			return nil, err
		}
		if state == "waiting" && accepted(req.Params.InputResponses, "confirm") {
			return text("state-ok: confirmed"), nil
		}
		return ask(seal("waiting"), mcp.InputRequestMap{"confirm": form("Please confirm", "ok", "boolean")}), nil
	}
	add(m, "test_input_required_result_request_state", "Asks, with a state", confirm)
	add(m, "test_input_required_result_tampered_state", "Asks, and refuses a state that was changed", confirm)
	add(m, "test_input_required_result_multiple_inputs", "Asks three things at once", func(_ context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		in := req.Params.InputResponses
		n := filled(in, "user_name", "name")
		said, ok := sampled(in, "greeting")
		if roots, isRoots := in["client_roots"].(*mcp.ListRootsResult); n != "" && ok && isRoots && roots != nil {
			return text("%s %s, %d root(s)", said, n, len(roots.Roots)), nil
		}
		return ask(seal("three"), mcp.InputRequestMap{
			"user_name": name(), "greeting": question("Say hello"), "client_roots": &mcp.ListRootsParams{}}), nil
	})
	add(m, "test_input_required_result_multi_round", "Asks twice", func(_ context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		state, err := unseal(req.Params.RequestState)
		if err != nil {
			return nil, err
		}
		in := req.Params.InputResponses
		switch known, isSecond := strings.CutPrefix(state, "name:"); {
		case isSecond:
			return text("%s likes %s", known, filled(in, "step2", "color")), nil
		case state == "first":
			return ask(seal("name:"+filled(in, "step1", "name")), mcp.InputRequestMap{"step2": form("Your favourite colour?", "color", "string")}), nil
		}
		return ask(seal("first"), mcp.InputRequestMap{"step1": name()}), nil
	})
	add(m, "test_input_required_result_capabilities", "Asks only what the client can answer", func(_ context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		if len(req.Params.InputResponses) > 0 {
			return text("answered"), nil
		}
		in := mcp.InputRequestMap{}
		if c := req.ClientCapabilities(); c != nil {
			if c.Elicitation != nil {
				in["user_name"] = name()
			}
			if c.Sampling != nil {
				in["greeting"] = question("Say hello")
			}
			if c.RootsV2 != nil {
				in["client_roots"] = &mcp.ListRootsParams{}
			}
		}
		if len(in) == 0 {
			return text("the client can answer nothing"), nil
		}
		return ask("", in), nil
	})
}
