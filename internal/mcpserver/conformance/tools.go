//lint:file-ignore SA1019 the suite for 2025-11-25 exercises what 2026-07-28 deprecates

package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// step is a fixture tool without arguments.
type step func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error)

func add(m *mcp.Server, name, description string, f step) {
	mcp.AddTool(m, &mcp.Tool{Name: name, Description: description},
		func(ctx context.Context, req *mcp.CallToolRequest, _ any) (*mcp.CallToolResult, any, error) {
			res, err := f(ctx, req)
			return res, nil, err
		})
}

func text(format string, args ...any) *mcp.CallToolResult {
	return contents(&mcp.TextContent{Text: fmt.Sprintf(format, args...)})
}

func contents(c ...mcp.Content) *mcp.CallToolResult { return &mcp.CallToolResult{Content: c} }

// answer is a fixture tool that always answers the same.
func answer(r *mcp.CallToolResult) step {
	return func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) { return r, nil }
}

func addContentTools(m *mcp.Server) {
	picture := &mcp.ImageContent{Data: redPixel(), MIMEType: "image/png"}
	embedded := func(uri, text string) mcp.Content {
		return &mcp.EmbeddedResource{Resource: &mcp.ResourceContents{URI: uri, MIMEType: "text/plain", Text: text}}
	}
	add(m, "test_simple_text", "Answers with text", answer(text("This is a simple text response for testing.")))
	add(m, "test_image_content", "Answers with an image", answer(contents(picture)))
	add(m, "test_audio_content", "Answers with audio", answer(contents(&mcp.AudioContent{Data: silence(), MIMEType: "audio/wav"})))
	add(m, "test_embedded_resource", "Answers with an embedded resource", answer(contents(embedded("test://embedded-resource", "This is an embedded resource content."))))
	add(m, "test_multiple_content_types", "Answers with text, an image and a resource", answer(contents(
		&mcp.TextContent{Text: "Multiple content types test:"}, picture, embedded("test://mixed-content-resource", `{"test":"data","value":123}`))))
	add(m, "test_error_handling", "Always fails", func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return nil, errors.New("this tool fails on purpose")
	})
	add(m, "test_tool_with_logging", "Sends three log messages", func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		for _, line := range []string{"Tool execution started", "Tool processing data", "Tool execution completed"} {
			if err := req.Session.Log(ctx, &mcp.LoggingMessageParams{Level: "info", Data: line}); err != nil {
				return nil, err
			}
		}
		return text("logged"), nil
	})
	add(m, "test_logging_tool", "Sends one log message", func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		err := req.Session.Log(ctx, &mcp.LoggingMessageParams{Level: "info", Data: "one message"})
		return text("logged if asked for"), err
	})
	add(m, "test_tool_with_progress", "Reports progress 0, 50, 100", func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		token := req.Params.GetProgressToken()
		for done := 0.0; done <= 100 && token != nil; done += 50 {
			n := &mcp.ProgressNotificationParams{ProgressToken: token, Progress: done, Total: 100, Message: fmt.Sprintf("%.0f of 100", done)}
			if err := req.Session.NotifyProgress(ctx, n); err != nil {
				return nil, err
			}
			// The TypeScript client drops what arrives together with the
			// result.
			pause(ctx, 50*time.Millisecond)
		}
		return text("%v", token), nil
	})
	add(m, "test_streaming_elicitation", "Answers on a stream without asking anything", answer(text("nothing was asked")))
	add(m, "test_reconnection", "Closes its stream in the middle of the call", func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		if req.Extra != nil && req.Extra.CloseSSEStream != nil {
			req.Extra.CloseSSEStream(mcp.CloseSSEStreamArgs{RetryAfter: 20 * time.Millisecond})
		}
		pause(ctx, 150*time.Millisecond) // the client comes back meanwhile
		return text("answered after the stream was closed"), nil
	})
	add(m, "test_missing_capability", "Needs the client's sampling capability", func(_ context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		if c := req.ClientCapabilities(); c != nil && c.Sampling != nil {
			return text("the client can sample"), nil
		}
		data, err := json.Marshal(mcp.MissingRequiredClientCapabilityData{RequiredCapabilities: &mcp.ClientCapabilities{Sampling: &mcp.SamplingCapabilities{}}})
		if err != nil {
			return nil, err
		}
		return nil, &jsonrpc.Error{Code: mcp.CodeMissingRequiredClientCapabilities, Message: "the client cannot sample", Data: data}
	})
	add(m, "test_trigger_tool_change", "Changes the list of tools", func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		add(m, "transient_tool", "Comes with test_trigger_tool_change", answer(text("here")))
		return text("changed"), nil
	})
	add(m, "test_trigger_prompt_change", "Changes the list of prompts", func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		m.AddPrompt(&mcp.Prompt{Name: "transient_prompt", Description: "Comes with test_trigger_prompt_change"}, func(context.Context, *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
			return said("here"), nil
		})
		return text("changed"), nil
	})
	for name, schema := range map[string]string{
		// Both must reach the client word for word.
		"json_schema_2020_12_tool": `{"$schema":"https://json-schema.org/draft/2020-12/schema","type":"object",
			"$defs":{"address":{"$anchor":"addressDef","type":"object","properties":{"street":{"type":"string"},"city":{"type":"string"}}}},
			"properties":{"name":{"type":"string"},"address":{"$ref":"#/$defs/address"},
				"contactMethod":{"type":"string","enum":["phone","email"]},"phone":{"type":"string"},"email":{"type":"string"}},
			"allOf":[{"anyOf":[{"required":["phone"]},{"required":["email"]}]}],
			"if":{"properties":{"contactMethod":{"const":"phone"}},"required":["contactMethod"]},
			"then":{"required":["phone"]},"else":{"required":["email"]},"additionalProperties":false}`,
		"test_x_mcp_header": `{"type":"object","properties":{
			"region":{"type":"string","description":"travels as a header too","x-mcp-header":"Region"},
			"level":{"type":"integer","description":"does not"}}}`,
	} {
		m.AddTool(&mcp.Tool{Name: name, Description: "Has an unusual schema", InputSchema: json.RawMessage(schema)},
			func(_ context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
				return text("called with %s", req.Params.Arguments), nil
			})
	}
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

func redPixel() []byte {
	img := image.NewRGBA(image.Rect(0, 0, 1, 1))
	img.Set(0, 0, color.RGBA{R: 255, A: 255})
	var b bytes.Buffer
	if err := png.Encode(&b, img); err != nil {
		panic(err)
	}
	return b.Bytes()
}

// silence is the shortest WAV file: one channel, 8 kHz, no samples.
func silence() []byte {
	var b bytes.Buffer
	b.WriteString("RIFF")
	_ = binary.Write(&b, binary.LittleEndian, uint32(36))
	b.WriteString("WAVEfmt ")
	for _, v := range []any{uint32(16), uint16(1), uint16(1), uint32(8000), uint32(8000), uint16(1), uint16(8)} {
		_ = binary.Write(&b, binary.LittleEndian, v)
	}
	b.WriteString("data\x00\x00\x00\x00")
	return b.Bytes()
}
