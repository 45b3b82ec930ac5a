//lint:file-ignore SA1019 the suite for 2025-11-25 exercises what 2026-07-28 deprecates

package main

import (
	"context"
	"encoding/json"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// addClientTools adds the tools that ask the client something during a call,
// as the protocols with sessions allow.
func addClientTools(m *mcp.Server) {
	type prompt struct {
		Prompt string `json:"prompt"`
	}
	mcp.AddTool(m, &mcp.Tool{Name: "test_sampling", Description: "Asks the client's model"},
		func(ctx context.Context, req *mcp.CallToolRequest, in prompt) (*mcp.CallToolResult, any, error) {
			res, err := req.Session.CreateMessage(ctx, &mcp.CreateMessageParams{
				Messages:  []*mcp.SamplingMessage{{Role: "user", Content: &mcp.TextContent{Text: in.Prompt}}},
				MaxTokens: 100,
			})
			if err != nil {
				return nil, nil, err
			}
			said, _ := res.Content.(*mcp.TextContent)
			if said == nil {
				said = &mcp.TextContent{}
			}
			return text("LLM response: %s", said.Text), nil, nil
		})
	type message struct {
		Message string `json:"message"`
	}
	mcp.AddTool(m, &mcp.Tool{Name: "test_elicitation", Description: "Asks the user for a name and an address"},
		func(ctx context.Context, req *mcp.CallToolRequest, in message) (*mcp.CallToolResult, any, error) {
			res, err := elicit(ctx, req, in.Message, `{"type":"object","properties":{
				"username":{"type":"string","description":"User's response"},
				"email":{"type":"string","description":"User's email address"}},"required":["username","email"]}`)
			return res, nil, err
		})
	add(m, "test_elicitation_sep1034_defaults", "Asks the user with defaults of every kind", func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return elicit(ctx, req, "Values with defaults", `{"type":"object","properties":{
			"name":{"type":"string","default":"John Doe"},
			"age":{"type":"integer","default":30},
			"score":{"type":"number","default":95.5},
			"status":{"type":"string","enum":["active","inactive","pending"],"default":"active"},
			"verified":{"type":"boolean","default":true}},"required":[]}`)
	})
	add(m, "test_elicitation_sep1330_enums", "Asks the user to choose, in every form there is", func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return elicit(ctx, req, "Choices", `{"type":"object","properties":{
			"untitledSingle":{"type":"string","enum":["option1","option2","option3"]},
			"titledSingle":{"type":"string","oneOf":[{"const":"value1","title":"First Option"},{"const":"value2","title":"Second Option"},{"const":"value3","title":"Third Option"}]},
			"legacyEnum":{"type":"string","enum":["opt1","opt2","opt3"],"enumNames":["Option One","Option Two","Option Three"]},
			"untitledMulti":{"type":"array","items":{"type":"string","enum":["option1","option2","option3"]}},
			"titledMulti":{"type":"array","items":{"anyOf":[{"const":"value1","title":"First Choice"},{"const":"value2","title":"Second Choice"},{"const":"value3","title":"Third Choice"}]}}},
			"required":[]}`)
	})
}

func elicit(ctx context.Context, req *mcp.CallToolRequest, message, schema string) (*mcp.CallToolResult, error) {
	res, err := req.Session.Elicit(ctx, &mcp.ElicitParams{Message: message, RequestedSchema: json.RawMessage(schema)})
	if err != nil {
		return nil, err
	}
	content, err := json.Marshal(res.Content)
	if err != nil {
		return nil, err
	}
	return text("Elicitation completed: action=%s, content=%s", res.Action, content), nil
}
