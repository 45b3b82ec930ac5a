// Package proto holds the protocol definitions. The generated code is
// committed; regenerate it with `go generate ./proto` where protoc,
// protoc-gen-go and protoc-gen-connect-go are on PATH.
package proto

//go:generate sh -c "cd .. && protoc -I proto --go_out=. --go_opt=module=sandboxforge --connect-go_out=. --connect-go_opt=module=sandboxforge,simple proto/sandboxforge/guest/v1/guest.proto"
//go:generate sh -c "cd .. && protoc -I proto --go_out=. --go_opt=module=sandboxforge --connect-go_out=. --connect-go_opt=module=sandboxforge,simple proto/sandboxforge/supervisor/v1/supervisor.proto"
