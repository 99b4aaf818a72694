package plugin

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"
	"google.golang.org/protobuf/proto"

	"github.com/atoll-dev/atoll/infra/providerapi"
	"github.com/atoll-dev/atoll/infra/tfplugin6"
)

// function is the signature of a function, with the message that the provider sent.
type function struct {
	providerapi.Function
	raw []byte
}

// addFunction decodes a signature. Both protocol versions have the same message.
func (c *Catalog) addFunction(name string, raw []byte) error {
	from := &tfplugin6.Function{}
	if err := proto.Unmarshal(raw, from); err != nil {
		return fmt.Errorf("function %s: %w", name, err)
	}
	f := &function{raw: raw}
	f.Description = from.Description
	if f.Description == "" {
		f.Description = from.Summary
	}
	var err error
	parameter := func(from *tfplugin6.Function_Parameter) providerapi.Parameter {
		ty, e := readType(from.GetType())
		err = errors.Join(err, e)
		return providerapi.Parameter{Name: from.GetName(), Type: ty, AllowNull: from.GetAllowNullValue()}
	}
	for _, p := range from.Parameters {
		f.Parameters = append(f.Parameters, parameter(p))
	}
	if from.VariadicParameter != nil {
		p := parameter(from.VariadicParameter)
		f.Variadic = &p
	}
	result, e := readType(from.Return.GetType())
	if f.Result = result; errors.Join(err, e) != nil {
		return fmt.Errorf("function %s: %w", name, errors.Join(err, e))
	}
	if c.functions == nil {
		c.functions = map[string]*function{}
	}
	c.functions[name] = f
	return nil
}

// Functions returns the names of the provider's functions, sorted.
func (c *Catalog) Functions() []string { return slices.Sorted(maps.Keys(c.functions)) }

// Function returns the signature of a function.
func (c *Catalog) Function(name string) (*providerapi.Function, error) {
	f := c.functions[name]
	if f == nil {
		return nil, fmt.Errorf("%q: %w", name, providerapi.ErrUnknownFunction)
	}
	return &f.Function, nil
}

// OpenFunctions starts the provider without a configuration. Only its functions can be called.
func (h *Host) OpenFunctions(ctx context.Context, binary Binary, settings Settings) (*Instance, error) {
	i := newInstance(h, binary, settings)
	i.schemaOnly = true
	if err := h.register(i); err != nil {
		return nil, fmt.Errorf("opening provider %s: %w", binary.Name, err)
	}
	if _, err := i.open(ctx); err != nil {
		i.Close()
		return nil, err
	}
	return i, nil
}

// CallFunction calls a function of the provider.
func (i *Instance) CallFunction(ctx context.Context, name string, arguments []cty.Value) (cty.Value, error) {
	f, err := i.catalog.Function(name)
	if err != nil {
		return cty.NilVal, err
	}
	request := &tfplugin6.CallFunction_Request{Name: name}
	for at, v := range arguments {
		parameter := f.Variadic
		if at < len(f.Parameters) {
			parameter = &f.Parameters[at]
		}
		if parameter == nil {
			return cty.NilVal, &providerapi.FunctionError{Text: fmt.Sprintf("takes %d arguments, got %d", len(f.Parameters), len(arguments)), Argument: -1}
		}
		converted, err := convert.Convert(v, parameter.Type)
		switch {
		case err != nil:
			return cty.NilVal, &providerapi.FunctionError{Text: fmt.Sprintf("%s must be %s, got %s", parameter.Name, parameter.Type.FriendlyName(), v.Type().FriendlyName()), Argument: at}
		case converted.IsNull() && !parameter.AllowNull:
			return cty.NilVal, &providerapi.FunctionError{Text: parameter.Name + " must not be null", Argument: at}
		}
		encoded, err := encode(converted, parameter.Type)
		if err != nil {
			return cty.NilVal, fmt.Errorf("provider %s: function %s: %w", i.binary.Name, name, err)
		}
		request.Arguments = append(request.Arguments, encoded)
	}
	if len(arguments) < len(f.Parameters) {
		return cty.NilVal, &providerapi.FunctionError{Text: fmt.Sprintf("takes %d arguments, got %d", len(f.Parameters), len(arguments)), Argument: -1}
	}
	answer := &tfplugin6.CallFunction_Response{}
	if err := i.call(ctx, i.localCall("CallFunction", name), request, answer); err != nil {
		return cty.NilVal, err
	}
	if answer.Error != nil {
		failed := &providerapi.FunctionError{Text: i.mask.text(answer.Error.Text), Argument: -1}
		if answer.Error.FunctionArgument != nil {
			failed.Argument = int(*answer.Error.FunctionArgument)
		}
		return cty.NilVal, failed
	}
	v, err := decode(answer.Result, f.Result)
	if err == nil && !v.IsWhollyKnown() {
		err = errors.New("its result is unknown, although its arguments are known")
	}
	if err != nil {
		return cty.NilVal, fmt.Errorf("provider %s: function %s: %w", i.binary.Name, name, err)
	}
	return v, nil
}
