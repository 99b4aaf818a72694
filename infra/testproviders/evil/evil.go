package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/terraform-plugin-go/tfprotov6"
	"github.com/hashicorp/terraform-plugin-go/tftypes"

	"github.com/atoll-dev/atoll/infra/testproviders/bare"
	"github.com/atoll-dev/atoll/infra/testproviders/settings"
)

// behaviours lists all behaviours.
var behaviours = []string{
	// Of the process.
	"hang",       // never answers, even after StopProvider
	"wait",       // answers with an error when it is stopped or cancelled
	"hang-after", // completes the call and never answers
	"die",        // exits
	"die-after",  // completes the call and exits
	"panic",      // panics
	"flood",      // writes to stderr, then completes the call
	"refuse",     // answers with a gRPC error
	"attack",     // tries to leave its containment, then completes the call; see attack
	// Of the answer.
	"error",    // returns an error about an attribute that does not exist
	"leak",     // shows the secret in a warning and on stderr
	"other",    // answers with another value than configured or planned
	"shifty",   // answers with another value each time
	"replaces", // requires a replacement, but only from the second plan of an object on
	"type",     // answers with a value of another type
	"garbage",  // answers with bytes that are not a value
	"absent",   // answers without a value
	"null",     // answers with null
	"unknown",  // answers with unknown values
	"huge",     // answers with a long string
}

// evil is a correct provider with misbehaving calls.
type evil struct {
	bare.Server
	configured map[string]tftypes.Value // of the provider
	asked      counter
}

// mood is the behaviour in one call.
type mood struct {
	behaviour string
	size      string
	secret    string
	schema    *tfprotov6.Schema
	e         *evil
}

// New returns the provider.
func New() *evil {
	return &evil{Server: bare.Server{Config: providerSchema(), Resources: map[string]*tfprotov6.Schema{"evil_thing": thingSchema()}, Replace: []string{"zone"}}}
}

// mood returns the behaviour in a call. The first source that sets one wins.
func (e *evil) mood(calls string, resource map[string]tftypes.Value) mood {
	m := mood{size: "1", e: e, schema: e.Resources["evil_thing"], secret: bare.Text(resource, "secret")}
	for _, get := range []func(string) string{
		func(name string) string { return bare.Text(resource, name) },
		func(name string) string { return bare.Text(e.configured, name) },
		func(name string) string { return settings.Get("EVIL_" + strings.ToUpper(name)) },
	} {
		if behaviour := get("behaviour"); behaviour != "" {
			if slices.Contains(strings.Fields(calls), get("call")) {
				m.behaviour = behaviour
			}
			if size := get("size"); size != "" {
				m.size = size
			}
			return m
		}
	}
	return m
}

// fields returns the attributes that may set a mood: those of the first value that is not null.
func (e *evil) fields(typeName string, values ...*tfprotov6.DynamicValue) map[string]tftypes.Value {
	schema := e.Resources[typeName]
	if schema == nil {
		return nil
	}
	for _, v := range values {
		if all, err := bare.Fields(v, schema); err == nil && all != nil {
			return all
		}
	}
	return nil
}

// before misbehaves before the call, or instead of it.
func (m *mood) before(ctx context.Context) error {
	switch m.behaviour {
	case "hang":
		forever()
	case "wait":
		select {
		case <-ctx.Done():
		case <-m.e.Stopped():
		}
		return fmt.Errorf("it was stopped")
	case "die":
		os.Exit(3)
	case "panic":
		panic("it panics")
	case "flood":
		return flood(m.size)
	case "attack":
		return attack(m.size)
	case "refuse":
		return fmt.Errorf("it refuses")
	}
	return nil
}

// after misbehaves when the call is complete and not yet answered.
func (m *mood) after() {
	switch m.behaviour {
	case "hang-after":
		forever()
	case "die-after":
		os.Exit(3)
	}
}

func forever() {
	for {
		time.Sleep(time.Hour)
	}
}

// spoil modifies the answer.
func (m *mood) spoil(v **tfprotov6.DynamicValue, diagnostics *[]*tfprotov6.Diagnostic) error {
	switch m.behaviour {
	case "error":
		*diagnostics = append(*diagnostics, &tfprotov6.Diagnostic{Severity: tfprotov6.DiagnosticSeverityError, Summary: "It complains", Detail: "as told",
			Attribute: tftypes.NewAttributePath().WithAttributeName("nowhere").WithElementKeyInt(7)})
	case "leak":
		*diagnostics = append(*diagnostics, &tfprotov6.Diagnostic{Severity: tfprotov6.DiagnosticSeverityWarning, Summary: "It leaks " + m.secret, Detail: "the secret is " + m.secret})
		fmt.Fprintln(os.Stderr, "the secret is", m.secret)
	case "garbage":
		*v = &tfprotov6.DynamicValue{MsgPack: []byte{0xc1, 0xff, 0x00}}
	case "absent":
		*v = nil
	case "type":
		other := tftypes.Object{AttributeTypes: map[string]tftypes.Type{"id": tftypes.Bool}}
		encoded, err := tfprotov6.NewDynamicValue(other, tftypes.NewValue(other, map[string]tftypes.Value{"id": tftypes.NewValue(tftypes.Bool, true)}))
		*v = &encoded
		return err
	default:
		return m.change(v)
	}
	return nil
}

// change modifies attributes of the answer.
func (m *mood) change(v **tfprotov6.DynamicValue) error {
	all, err := bare.Fields(*v, m.schema)
	if err != nil {
		return err
	}
	typ := m.schema.ValueType()
	whole := func() any { return all }
	switch m.behaviour {
	case "null":
		whole = func() any { return nil }
	case "other":
		all["value"] = tftypes.NewValue(tftypes.String, "something else")
	case "shifty":
		all["mood"] = tftypes.NewValue(tftypes.String, fmt.Sprint("mood ", m.e.asked.next("shifty")))
	case "unknown":
		all["value"] = tftypes.NewValue(tftypes.String, tftypes.UnknownValue)
	case "huge":
		all["mood"] = tftypes.NewValue(tftypes.String, strings.Repeat("huge", mebibytes(m.size)<<18))
	default:
		return nil
	}
	if all == nil && m.behaviour != "null" {
		return nil // nothing to change after a deletion
	}
	*v, err = bare.Wire(tftypes.NewValue(typ, whole()), m.schema)
	return err
}

// mebibytes returns 1 for anything but a number.
func mebibytes(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		return 1
	}
	return n
}
