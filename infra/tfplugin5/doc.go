// Package tfplugin5 is the messages of version 5 of the plug-in protocol of Terraform and
// OpenTofu, generated from its published definition (version 5.10, from docs/plugin-protocol
// of OpenTofu 1.12.6). tfplugin5.proto is under the licence that stands at its head, the Mozilla
// Public License 2.0.
//
// There are no gRPC stubs: they would register the service under the package's name
// here, which is not the one that providers answer to. Package provider calls methods by
// their names on the wire.
package tfplugin5

// Needs protoc, which Debian has in protobuf-compiler.
//go:generate sh -c "protoc --plugin=protoc-gen-go=$(go tool -n protoc-gen-go) --go_out=. --go_opt=paths=source_relative tfplugin5.proto"
