package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

func addResources(m *mcp.Server) {
	fixed := func(c mcp.ResourceContents) mcp.ResourceHandler {
		return func(context.Context, *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
			one := c
			return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{&one}}, nil
		}
	}
	for _, r := range []struct {
		name, description string
		content           mcp.ResourceContents
	}{
		{"Static Text Resource", "A static text resource for testing", mcp.ResourceContents{URI: "test://static-text", MIMEType: "text/plain", Text: "This is the content of the static text resource."}},
		{"Static Binary Resource", "A static image for testing", mcp.ResourceContents{URI: "test://static-binary", MIMEType: "image/png", Blob: redPixel()}},
		{"Watched Resource", "A resource that can be subscribed to", mcp.ResourceContents{URI: "test://watched-resource", MIMEType: "text/plain", Text: "Watched resource content"}},
	} {
		m.AddResource(&mcp.Resource{Name: r.name, Description: r.description, URI: r.content.URI, MIMEType: r.content.MIMEType}, fixed(r.content))
	}
	m.AddResourceTemplate(&mcp.ResourceTemplate{Name: "Template", URITemplate: "test://template/{id}/data", MIMEType: "application/json"},
		func(_ context.Context, req *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
			id := strings.TrimSuffix(strings.TrimPrefix(req.Params.URI, "test://template/"), "/data")
			raw, err := json.Marshal(map[string]any{"id": id, "templateTest": true, "data": "Data for ID: " + id})
			if err != nil {
				return nil, err
			}
			return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{{URI: req.Params.URI, MIMEType: "application/json", Text: string(raw)}}}, nil
		})
}

func said(c ...any) *mcp.GetPromptResult {
	res := &mcp.GetPromptResult{}
	for _, one := range c {
		content, ok := one.(mcp.Content)
		if !ok {
			content = &mcp.TextContent{Text: fmt.Sprint(one)}
		}
		res.Messages = append(res.Messages, &mcp.PromptMessage{Role: "user", Content: content})
	}
	return res
}

func addPrompts(m *mcp.Server) {
	arg := func(name string) *mcp.PromptArgument {
		return &mcp.PromptArgument{Name: name, Description: "An argument for testing", Required: true}
	}
	m.AddPrompt(&mcp.Prompt{Name: "test_simple_prompt", Description: "Without arguments"},
		func(context.Context, *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
			return said("This is a simple prompt for testing."), nil
		})
	m.AddPrompt(&mcp.Prompt{Name: "test_prompt_with_arguments", Description: "With two arguments", Arguments: []*mcp.PromptArgument{arg("arg1"), arg("arg2")}},
		func(_ context.Context, req *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
			a := req.Params.Arguments
			return said(fmt.Sprintf("Prompt with arguments: arg1='%s', arg2='%s'", a["arg1"], a["arg2"])), nil
		})
	m.AddPrompt(&mcp.Prompt{Name: "test_prompt_with_embedded_resource", Description: "With a resource", Arguments: []*mcp.PromptArgument{arg("resourceUri")}},
		func(_ context.Context, req *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
			return said(
				&mcp.EmbeddedResource{Resource: &mcp.ResourceContents{URI: req.Params.Arguments["resourceUri"], MIMEType: "text/plain", Text: "Embedded resource content for testing."}},
				"Please process the embedded resource above."), nil
		})
	m.AddPrompt(&mcp.Prompt{Name: "test_prompt_with_image", Description: "With an image"},
		func(context.Context, *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
			return said(&mcp.ImageContent{Data: redPixel(), MIMEType: "image/png"}, "Please analyze the image above."), nil
		})
	m.AddPrompt(&mcp.Prompt{Name: "test_input_required_result_prompt", Description: "Asks the user for a context"},
		func(_ context.Context, req *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
			if c := filled(req.Params.InputResponses, "user_context", "context"); c != "" {
				return said("Context: " + c), nil
			}
			return &mcp.GetPromptResult{InputRequests: mcp.InputRequestMap{"user_context": form("Please give a context", "context", "string")}}, nil
		})
}
