package plugin

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"
	"github.com/zclconf/go-cty/cty"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/atoll-dev/atoll/infra/tfplugin6"
)

// The fake provider is this test binary, started again with fakeEnv set to its behaviour at start.
// The attribute "behave" sets its behaviour in a call.
const fakeEnv = "ATOLL_FAKE_PROVIDER"

// A program with the race detector waits a second before it exits, for reports of other goroutines.
// The tests wait for the end of several hundred processes, and these options make it immediate.
const raceVariable, raceOptions = "GORACE", "atexit_sleep_ms=0"

// fakeVariables is the environment of the fake provider.
func fakeVariables(mode string) map[string]string {
	return map[string]string{fakeEnv: mode, raceVariable: raceOptions}
}

// fakeThing is the implied type of fake_thing's schema below.
func fakeThing() cty.Type {
	return cty.Object(map[string]cty.Type{
		"id": cty.String, "name": cty.String, "behave": cty.String, "tags": cty.Map(cty.String),
		"number": cty.Number, "any": cty.DynamicPseudoType, "token": cty.String, "once": cty.String, "pid": cty.Number,
		"rule": cty.List(cty.Object(map[string]cty.Type{"port": cty.Number})),
	})
}

// fakeIdentity is the type of its identity.
func fakeIdentity() cty.Type { return cty.Object(map[string]cty.Type{"id": cty.String}) }

// A fake is the provider in the child process.
type fake struct {
	plugin.NetRPCUnsupportedPlugin
	mode    string
	version int
	token   atomic.Value // from the configuration
	running atomic.Int64
	most    atomic.Int64 // maximum of concurrent calls
	asked   atomic.Bool  // its schema was requested
	stopped chan struct{}
}

func (f *fake) is(mode string) bool { return strings.Contains(","+f.mode+",", ","+mode+",") }

// runFake serves until the host ends the process.
func runFake(mode string) {
	f := &fake{mode: mode, version: 6, stopped: make(chan struct{})}
	if f.is("5") {
		f.version = 5
	}
	f.startBadly()
	plugin.Serve(&plugin.ServeConfig{
		HandshakeConfig:  handshake(),
		VersionedPlugins: map[int]plugin.PluginSet{f.version: {"provider": f}},
		GRPCServer:       func(o []grpc.ServerOption) *grpc.Server { return grpc.NewServer(o...) },
		Logger:           hclog.NewNullLogger(),
	})
}

func (f *fake) startBadly() {
	switch {
	case f.is("refuse"):
		fmt.Fprintln(os.Stderr, "the licence has expired, and the token is "+os.Getenv("FAKE_TOKEN"))
		os.Exit(7)
	case f.is("silent"):
		select {}
	case f.is("elsewhere"):
		fmt.Println("1|6|tcp|192.0.2.1:443|grpc|")
		select {}
	case f.is("future"):
		fmt.Println("1|7|unix|" + os.Getenv("PLUGIN_UNIX_SOCKET_DIR") + "/plugin1|grpc|")
		select {}
	case f.is("babble"):
		for {
			fmt.Print(strings.Repeat("blah", 1<<18))
		}
	case f.is("deaf"):
		signal.Ignore(syscall.SIGTERM, syscall.SIGINT)
	}
}

// GRPCServer registers the service by hand, under its name on the wire.
func (f *fake) GRPCServer(_ *plugin.GRPCBroker, s *grpc.Server) error {
	service := fmt.Sprintf("tfplugin%d.Provider", f.version)
	desc := &grpc.ServiceDesc{ServiceName: service}
	for name, handle := range f.methods() {
		full := (&process{access: access{protocol: f.version}}).method(name)
		desc.Methods = append(desc.Methods, grpc.MethodDesc{
			MethodName: strings.TrimPrefix(full, "/"+service+"/"),
			Handler: func(_ any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
				now := f.running.Add(1)
				defer f.running.Add(-1)
				for most := f.most.Load(); now > most && !f.most.CompareAndSwap(most, now); most = f.most.Load() {
				}
				return handle(ctx, decode)
			},
		})
	}
	s.RegisterService(desc, nil)
	return nil
}

// GRPCClient is the host's side, which the fake does not have.
func (f *fake) GRPCClient(context.Context, *plugin.GRPCBroker, *grpc.ClientConn) (any, error) {
	return nil, nil
}

type handler func(ctx context.Context, decode func(any) error) (any, error)

// answering decodes a request and answers it.
func answering[Q any, A any](answer func(context.Context, *Q) (A, error)) handler {
	return func(ctx context.Context, decode func(any) error) (any, error) {
		q := new(Q)
		if err := decode(q); err != nil {
			return nil, err
		}
		return answer(ctx, q)
	}
}

func (f *fake) methods() map[string]handler {
	m := map[string]handler{
		"GetProviderSchema":          f.schema,
		"ValidateProviderConfig":     answering(f.validateProvider),
		"ConfigureProvider":          answering(f.configure),
		"ValidateResourceConfig":     answering(f.validateResource),
		"ValidateDataResourceConfig": answering(f.validateData),
		"UpgradeResourceState":       answering(f.upgrade),
		"ReadResource":               answering(f.read),
		"PlanResourceChange":         answering(f.plan),
		"ApplyResourceChange":        answering(f.apply),
		"ImportResourceState":        answering(f.importState),
		"ReadDataSource":             answering(f.readData),
		"StopProvider":               answering(f.stop),
	}
	if !f.is("old") {
		m["GetResourceIdentitySchemas"] = answering(f.identities)
	}
	return m
}

// behave does what the attribute "behave" says before the call is answered. If it returns bytes,
// they are sent instead of the answer.
func (f *fake) behave(ctx context.Context, v cty.Value) (instead []byte, err error) {
	how := ""
	if !v.IsNull() && v.Type().HasAttribute("behave") {
		if behave := v.GetAttr("behave"); behave.IsKnown() && !behave.IsNull() {
			how = behave.AsString()
		}
	}
	switch how, argument, _ := strings.Cut(how, ":"); how {
	case "hang":
		select {}
	case "freeze":
		// Stops the whole process, so that it does not even answer pings.
		if err := syscall.Kill(os.Getpid(), syscall.SIGSTOP); err != nil {
			return nil, err
		}
		select {}
	case "die":
		go func() { panic("I cannot go on, with token " + f.token.Load().(string)) }()
		select {}
	case "gate": // logs its start and waits for a file, even if it is asked to stop
		if err := appendLine(argument+".begun", fmt.Sprintf("%s %d %d", textOf(v.GetAttr("name")), os.Getpid(), os.Getppid())); err != nil {
			return nil, err
		}
		for {
			if _, err := os.Stat(argument); err == nil {
				return nil, nil
			}
			time.Sleep(time.Millisecond)
		}
	case "until": // waits for a file or for StopProvider
		for {
			if _, err := os.Stat(argument); err == nil {
				return nil, nil
			}
			select {
			case <-f.stopped:
				return nil, status.Error(codes.Aborted, "told to stop")
			case <-ctx.Done():
				return nil, ctx.Err()
			case <-time.After(time.Millisecond):
			}
		}
	case "log": // in a file, after a delay
		file, took, _ := strings.Cut(argument, ",")
		length, err := time.ParseDuration(took)
		if err != nil {
			return nil, err
		}
		time.Sleep(length)
		return nil, appendLine(file, fmt.Sprintf("%s %d %d", textOf(v.GetAttr("name")), os.Getpid(), os.Getppid()))
	case "flood":
		line := strings.Repeat("x", 1<<16) + "\n"
		for range 512 {
			os.Stderr.WriteString(line)
			// A signal of the Go runtime can interrupt a write.
			for rest := []byte(line); len(rest) > 0; {
				n, err := syscall.Write(2, rest)
				if err != nil && !errors.Is(err, syscall.EINTR) {
					return nil, err
				}
				rest = rest[max(0, n):]
			}
		}
	case "child": // which starts another one that tries to outlive it
		child := exec.Command("/bin/sh", "-c", "sleep 1000 & echo $! > "+argument+"; wait")
		child.Stdout, child.Stderr = os.Stdout, os.NewFile(2, "stderr")
		return nil, child.Start()
	case "rubbish":
		return []byte("\xff\xff\xff\xffrubbish"), nil
	case "raw": // sends the argument as state
		return protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType),
			protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), []byte(argument))), nil
	case "huge":
		return make([]byte, maxAnswerSize+1), nil
	case "fail":
		return nil, status.Error(codes.Unknown, argument)
	case "defer":
		field := map[string]protowire.Number{"read": 4, "plan": 6}[argument]
		return protowire.AppendBytes(protowire.AppendTag(nil, field, protowire.BytesType), []byte{8, 3}), nil
	}
	return nil, nil
}

// appendLine appends a line in one write, so that lines of concurrent writers do not mix.
func appendLine(file, line string) error {
	f, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(line + "\n")
	return errors.Join(err, f.Close())
}

// sending adds the bytes to an answer as unknown fields, which are sent unchanged.
func sending[A proto.Message](a A, instead []byte) A {
	a.ProtoReflect().SetUnknown(instead)
	return a
}

func fakeDecode(v *tfplugin6.DynamicValue, t cty.Type) cty.Value {
	decoded, err := decode(v, t)
	if err != nil {
		panic(err)
	}
	return decoded
}

func fakeEncode(v cty.Value, t cty.Type) *tfplugin6.DynamicValue {
	encoded, err := encode(v, t)
	if err != nil {
		panic(err)
	}
	return encoded
}

func with(v cty.Value, name string, is cty.Value) cty.Value {
	attributes := v.AsValueMap()
	attributes[name] = is
	return cty.ObjectVal(attributes)
}

func textOf(v cty.Value) string {
	if v.IsNull() || !v.IsKnown() {
		return ""
	}
	return v.AsString()
}

func fakeConfig() cty.Type {
	return cty.Object(map[string]cty.Type{"token": cty.String, "fail": cty.String})
}

func (f *fake) validateProvider(_ context.Context, q *tfplugin6.ValidateProviderConfig_Request) (*tfplugin6.ValidateProviderConfig_Response, error) {
	return &tfplugin6.ValidateProviderConfig_Response{Diagnostics: []*tfplugin6.Diagnostic{
		{Severity: tfplugin6.Diagnostic_WARNING, Summary: "This is a fake"},
	}}, nil
}

func (f *fake) configure(_ context.Context, q *tfplugin6.ConfigureProvider_Request) (*tfplugin6.ConfigureProvider_Response, error) {
	config := fakeDecode(q.Config, fakeConfig())
	f.token.Store(textOf(config.GetAttr("token")))
	a := &tfplugin6.ConfigureProvider_Response{}
	if !f.asked.Load() {
		return nil, status.Error(codes.FailedPrecondition, "the schema was not requested")
	}
	fail := textOf(config.GetAttr("fail"))
	if path, ok := strings.CutPrefix(fail, "if:"); ok { // if a file exists
		if _, err := os.Stat(path); err != nil {
			fail = ""
		}
	}
	if fail != "" {
		a.Diagnostics = append(a.Diagnostics, &tfplugin6.Diagnostic{
			Severity: tfplugin6.Diagnostic_ERROR, Summary: "Not with " + f.token.Load().(string), Detail: fail,
			Attribute: &tfplugin6.AttributePath{Steps: []*tfplugin6.AttributePath_Step{
				{Selector: &tfplugin6.AttributePath_Step_AttributeName{AttributeName: "fail"}},
			}},
		})
	}
	return a, nil
}

func (f *fake) validateResource(ctx context.Context, q *tfplugin6.ValidateResourceConfig_Request) (*tfplugin6.ValidateResourceConfig_Response, error) {
	config := fakeDecode(q.Config, fakeThing())
	a := &tfplugin6.ValidateResourceConfig_Response{}
	if name := config.GetAttr("name"); name.IsKnown() && name.IsNull() {
		a.Diagnostics = append(a.Diagnostics, &tfplugin6.Diagnostic{
			Severity: tfplugin6.Diagnostic_ERROR, Summary: "No name", Detail: "It needs one.",
			Attribute: &tfplugin6.AttributePath{Steps: []*tfplugin6.AttributePath_Step{
				{Selector: &tfplugin6.AttributePath_Step_AttributeName{AttributeName: "tags"}},
				{Selector: &tfplugin6.AttributePath_Step_ElementKeyString{ElementKeyString: "Name"}},
				{Selector: &tfplugin6.AttributePath_Step_ElementKeyInt{ElementKeyInt: 3}},
			}},
		})
	}
	if !q.ClientCapabilities.GetWriteOnlyAttributesAllowed() {
		return nil, status.Error(codes.FailedPrecondition, "write-only attributes are not allowed")
	}
	instead, err := f.behave(ctx, config)
	return sending(a, instead), err
}

func (f *fake) validateData(context.Context, *tfplugin6.ValidateDataResourceConfig_Request) (*tfplugin6.ValidateDataResourceConfig_Response, error) {
	return &tfplugin6.ValidateDataResourceConfig_Response{Diagnostics: []*tfplugin6.Diagnostic{
		{Severity: tfplugin6.Diagnostic_WARNING, Summary: "Data is data"},
	}}, nil
}

func (f *fake) upgrade(_ context.Context, q *tfplugin6.UpgradeResourceState_Request) (*tfplugin6.UpgradeResourceState_Response, error) {
	v := fakeNothing()
	if q.RawState.Flatmap != nil {
		v = with(v, "name", cty.StringVal(fmt.Sprintf("version %d: %s", q.Version, q.RawState.Flatmap["name"])))
	} else {
		v = with(v, "name", cty.StringVal(fmt.Sprintf("version %d: %s", q.Version, q.RawState.Json)))
	}
	return &tfplugin6.UpgradeResourceState_Response{UpgradedState: fakeEncode(v, fakeThing())}, nil
}

// fakeNothing is a fake_thing whose attributes are null.
func fakeNothing() cty.Value {
	attributes := map[string]cty.Value{}
	for name, t := range fakeThing().AttributeTypes() {
		attributes[name] = cty.NullVal(t)
	}
	attributes["rule"] = cty.ListValEmpty(fakeThing().AttributeType("rule").ElementType())
	return cty.ObjectVal(attributes)
}

func (f *fake) read(ctx context.Context, q *tfplugin6.ReadResource_Request) (*tfplugin6.ReadResource_Response, error) {
	v := fakeDecode(q.CurrentState, fakeThing())
	instead, err := f.behave(ctx, v)
	if instead != nil || err != nil {
		return sending(&tfplugin6.ReadResource_Response{}, instead), err
	}
	a := &tfplugin6.ReadResource_Response{Private: append([]byte("read "), q.Private...), NewIdentity: q.CurrentIdentity}
	if !v.IsNull() && textOf(v.GetAttr("name")) == "gone" {
		return a, nil // without a state
	}
	if !v.IsNull() {
		v = with(v, "pid", cty.NumberIntVal(int64(os.Getpid())))
		if textOf(v.GetAttr("behave")) == "leak" {
			v = with(v, "once", cty.StringVal("not to be seen"))
		}
	}
	a.NewState = fakeEncode(v, fakeThing())
	return a, nil
}

func (f *fake) plan(ctx context.Context, q *tfplugin6.PlanResourceChange_Request) (*tfplugin6.PlanResourceChange_Response, error) {
	v := fakeDecode(q.ProposedNewState, fakeThing())
	prior := fakeDecode(q.PriorState, fakeThing())
	a := &tfplugin6.PlanResourceChange_Response{
		PlannedPrivate: append([]byte("planned "), q.PriorPrivate...), PlannedIdentity: q.PriorIdentity, LegacyTypeSystem: f.version == 5,
	}
	if f.is("plandestroy") && v.IsNull() {
		a.Diagnostics = []*tfplugin6.Diagnostic{{Severity: tfplugin6.Diagnostic_WARNING, Summary: "Really?"}}
	}
	if instead, err := f.behave(ctx, v); instead != nil || err != nil {
		return sending(a, instead), err
	}
	if !v.IsNull() {
		if prior.IsNull() {
			v = with(with(v, "id", cty.UnknownVal(cty.String).RefineNotNull()), "pid", cty.UnknownVal(cty.Number))
		} else if !prior.GetAttr("name").RawEquals(v.GetAttr("name")) {
			a.RequiresReplace = []*tfplugin6.AttributePath{{Steps: []*tfplugin6.AttributePath_Step{
				{Selector: &tfplugin6.AttributePath_Step_AttributeName{AttributeName: "name"}},
			}}}
		}
		v = with(v, "once", cty.NullVal(cty.String))
	}
	a.PlannedState = fakeEncode(v, fakeThing())
	return a, nil
}

func (f *fake) apply(ctx context.Context, q *tfplugin6.ApplyResourceChange_Request) (*tfplugin6.ApplyResourceChange_Response, error) {
	v := fakeDecode(q.PlannedState, fakeThing())
	a := &tfplugin6.ApplyResourceChange_Response{Private: append([]byte("applied "), q.PlannedPrivate...), LegacyTypeSystem: f.version == 5}
	if instead, err := f.behave(ctx, v); instead != nil || err != nil {
		return sending(a, instead), err
	}
	if !v.IsNull() {
		v = with(with(v, "id", cty.StringVal("id-of-"+textOf(v.GetAttr("name")))), "pid", cty.NumberIntVal(int64(os.Getpid())))
		a.NewIdentity = &tfplugin6.ResourceIdentityData{
			IdentityData: fakeEncode(cty.ObjectVal(map[string]cty.Value{"id": v.GetAttr("id")}), fakeIdentity()),
		}
		if config := fakeDecode(q.Config, fakeThing()); !config.IsNull() && textOf(config.GetAttr("once")) != "" {
			v = with(v, "any", cty.NumberIntVal(int64(len(textOf(config.GetAttr("once"))))))
		}
	}
	a.NewState = fakeEncode(v, fakeThing())
	return a, nil
}

func (f *fake) importState(_ context.Context, q *tfplugin6.ImportResourceState_Request) (*tfplugin6.ImportResourceState_Response, error) {
	v := with(fakeNothing(), "id", cty.StringVal(q.Id))
	return &tfplugin6.ImportResourceState_Response{ImportedResources: []*tfplugin6.ImportResourceState_ImportedResource{
		{TypeName: q.TypeName, State: fakeEncode(v, fakeThing()), Private: []byte("imported")},
		{TypeName: "fake_bare", State: fakeEncode(cty.EmptyObjectVal, cty.EmptyObject)},
	}}, nil
}

// fakeProcess is the type of the data source that describes the process.
func fakeProcess() cty.Type {
	return cty.Object(map[string]cty.Type{
		"environment": cty.List(cty.String), "directory": cty.String, "status": cty.String,
		"uid": cty.Number, "group": cty.Number, "pid": cty.Number, "most": cty.Number,
	})
}

func (f *fake) readData(context.Context, *tfplugin6.ReadDataSource_Request) (*tfplugin6.ReadDataSource_Response, error) {
	var environment []cty.Value
	for _, line := range os.Environ() {
		environment = append(environment, cty.StringVal(line))
	}
	directory, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	of := ""
	if runtime.GOOS == "linux" {
		text, err := os.ReadFile("/proc/self/status")
		if err != nil {
			return nil, err
		}
		of = string(text)
	}
	v := cty.ObjectVal(map[string]cty.Value{
		"environment": cty.ListVal(environment), "directory": cty.StringVal(directory), "status": cty.StringVal(of),
		"uid": cty.NumberIntVal(int64(os.Getuid())), "group": cty.NumberIntVal(int64(syscall.Getpgrp())),
		"pid": cty.NumberIntVal(int64(os.Getpid())), "most": cty.NumberIntVal(f.most.Load()),
	})
	return &tfplugin6.ReadDataSource_Response{State: fakeEncode(v, fakeProcess())}, nil
}

func (f *fake) stop(context.Context, *tfplugin6.StopProvider_Request) (*tfplugin6.StopProvider_Response, error) {
	select {
	case <-f.stopped:
	default:
		close(f.stopped)
	}
	if f.is("deaf") {
		select {}
	}
	return &tfplugin6.StopProvider_Response{}, nil
}
