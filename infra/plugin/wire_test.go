package plugin

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/atoll-dev/atoll/infra/tfplugin5"
	"github.com/atoll-dev/atoll/infra/tfplugin6"
)

// TestVersionsShareWireFormat: calls to providers of protocol version 5 use the messages of version
// 6. Every field that both versions have must have the same wire format, and the fields that only
// one has must be listed here.
func TestVersionsShareWireFormat(t *testing.T) {
	five, six := tfplugin5.File_tfplugin5_proto.Messages(), tfplugin6.File_tfplugin6_proto.Messages()
	w := &wire{seen: map[protoreflect.FullName]bool{}}
	for _, names := range [][2]protoreflect.Name{
		{"PrepareProviderConfig", "ValidateProviderConfig"}, {"Configure", "ConfigureProvider"},
		{"ValidateResourceTypeConfig", "ValidateResourceConfig"}, {"ValidateDataSourceConfig", "ValidateDataResourceConfig"},
		{"UpgradeResourceState", "UpgradeResourceState"}, {"ReadResource", "ReadResource"}, {"PlanResourceChange", "PlanResourceChange"},
		{"ApplyResourceChange", "ApplyResourceChange"}, {"ImportResourceState", "ImportResourceState"}, {"ReadDataSource", "ReadDataSource"},
		{"MoveResourceState", "MoveResourceState"}, {"CallFunction", "CallFunction"},
		{"GetResourceIdentitySchemas", "GetResourceIdentitySchemas"}, {"Stop", "StopProvider"},
	} {
		for _, part := range []protoreflect.Name{"Request", "Response"} {
			w.compare(five.ByName(names[0]).Messages().ByName(part), six.ByName(names[1]).Messages().ByName(part))
		}
	}
	w.compare(five.ByName("ServerCapabilities"), six.ByName("ServerCapabilities"))
	w.compare(five.ByName("Function"), six.ByName("Function"))
	w.compare(five.ByName("Diagnostic"), six.ByName("Diagnostic"))
	want := []string{"PrepareProviderConfig.Response: prepared_config is in one only"}
	if !slices.Equal(w.differ, want) {
		t.Errorf("the versions differ in:\n%s", strings.Join(w.differ, "\n"))
	}
	// The fields that newCatalog decodes by number.
	for number, name := range map[protoreflect.FieldNumber]protoreflect.Name{
		1: "provider", 2: "resource_schemas", 3: "data_source_schemas", 4: "diagnostics", 6: "server_capabilities", 7: "functions",
	} {
		for _, messages := range []protoreflect.MessageDescriptors{five, six} {
			field := messages.ByName("GetProviderSchema").Messages().ByName("Response").Fields().ByNumber(number)
			if field == nil || field.Name() != name {
				t.Errorf("field %d of GetProviderSchema.Response is not %s in %s", number, name, messages.Get(0).ParentFile().Path())
			}
		}
	}
}

type wire struct {
	seen   map[protoreflect.FullName]bool
	differ []string
}

func (w *wire) compare(five, six protoreflect.MessageDescriptor) {
	if w.seen[five.FullName()] {
		return
	}
	w.seen[five.FullName()] = true
	name := strings.TrimPrefix(string(five.FullName()), "atoll.tfplugin5.")
	fields := map[protoreflect.FieldNumber]bool{}
	for _, m := range []protoreflect.MessageDescriptor{five, six} {
		for n := range m.Fields().Len() {
			fields[m.Fields().Get(n).Number()] = true
		}
	}
	for number := range fields {
		a, b := five.Fields().ByNumber(number), six.Fields().ByNumber(number)
		switch {
		case a == nil || b == nil:
			w.differ = append(w.differ, fmt.Sprintf("%s: %s is in one only", name, eitherName(a, b)))
		case form(a) != form(b):
			w.differ = append(w.differ, fmt.Sprintf("%s: %s and %s", name, form(a), form(b)))
		case a.Message() != nil:
			w.compare(a.Message(), b.Message())
		case a.Enum() != nil:
			w.compareEnum(name, a.Enum(), b.Enum())
		}
	}
}

func (w *wire) compareEnum(name string, five, six protoreflect.EnumDescriptor) {
	for n := range five.Values().Len() {
		a := five.Values().Get(n)
		if b := six.Values().ByNumber(a.Number()); b == nil || b.Name() != a.Name() {
			w.differ = append(w.differ, fmt.Sprintf("%s: %s", name, a.Name()))
		}
	}
}

func eitherName(a, b protoreflect.FieldDescriptor) protoreflect.Name {
	if a != nil {
		return a.Name()
	}
	return b.Name()
}

// form describes the wire format of a field, and its name.
func form(f protoreflect.FieldDescriptor) string {
	return fmt.Sprintf("%d %s %s %s packed %v", f.Number(), f.Name(), f.Cardinality(), f.Kind(), f.IsPacked())
}
