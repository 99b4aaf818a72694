package expr

import (
	"bytes"
	"compress/gzip"
	"crypto/md5"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/function"
	"github.com/zclconf/go-cty/cty/function/stdlib"
	"go.yaml.in/yaml/v3"
)

// Functions of OpenTofu that go-cty does not have. Names of parameters are in errors.

func param(name string, ty cty.Type) function.Parameter {
	return function.Parameter{Name: name, Type: ty}
}

// textFunction returns a function from texts to one value.
func textFunction(result cty.Type, names []string, do func(args []string) (cty.Value, error)) function.Function {
	spec := &function.Spec{Type: function.StaticReturnType(result)}
	for _, name := range names {
		spec.Params = append(spec.Params, param(name, cty.String))
	}
	spec.Impl = func(args []cty.Value, _ cty.Type) (cty.Value, error) {
		texts := make([]string, len(args))
		for i := range args {
			texts[i] = args[i].AsString()
		}
		return do(texts)
	}
	return function.New(spec)
}

func textTest(test func(text, part string) bool) function.Function {
	return textFunction(cty.Bool, []string{"text", "part"}, func(args []string) (cty.Value, error) { return cty.BoolVal(test(args[0], args[1])), nil })
}

func hashFunction(name string, asBase64 bool) function.Function {
	return textFunction(cty.String, []string{"text"}, func(args []string) (cty.Value, error) {
		var sum []byte
		switch text := []byte(args[0]); name {
		case "md5":
			of := md5.Sum(text)
			sum = of[:]
		case "sha1":
			of := sha1.Sum(text)
			sum = of[:]
		case "sha256":
			of := sha256.Sum256(text)
			sum = of[:]
		default:
			of := sha512.Sum512(text)
			sum = of[:]
		}
		if asBase64 {
			return cty.StringVal(base64.StdEncoding.EncodeToString(sum)), nil
		}
		return cty.StringVal(hex.EncodeToString(sum)), nil
	})
}

func gzipFunction() function.Function {
	return textFunction(cty.String, []string{"text"}, func(args []string) (cty.Value, error) {
		var out bytes.Buffer
		zip := gzip.NewWriter(&out)
		if _, err := zip.Write([]byte(args[0])); err != nil {
			return cty.NilVal, err
		}
		if err := zip.Close(); err != nil {
			return cty.NilVal, err
		}
		return cty.StringVal(base64.StdEncoding.EncodeToString(out.Bytes())), nil
	})
}

func urlEncodeFunction() function.Function {
	return textFunction(cty.String, []string{"text"}, func(args []string) (cty.Value, error) { return cty.StringVal(url.QueryEscape(args[0])), nil })
}

func urlDecodeFunction() function.Function {
	return textFunction(cty.String, []string{"text"}, func(args []string) (cty.Value, error) {
		out, err := url.QueryUnescape(args[0])
		if err != nil {
			return cty.NilVal, errors.New("the text is not URL-encoded")
		}
		return cty.StringVal(out), nil
	})
}

func uuidFunction() function.Function {
	return textFunction(cty.String, []string{"namespace", "name"}, func(args []string) (cty.Value, error) {
		space, err := uuid.Parse(args[0])
		if err != nil {
			switch args[0] {
			case "dns":
				space = uuid.NameSpaceDNS
			case "url":
				space = uuid.NameSpaceURL
			case "oid":
				space = uuid.NameSpaceOID
			case "x500":
				space = uuid.NameSpaceX500
			default:
				return cty.NilVal, errors.New("the namespace must be dns, url, oid, x500 or a UUID")
			}
		}
		return cty.StringVal(uuid.NewSHA1(space, []byte(args[1])).String()), nil
	})
}

func timeCompareFunction() function.Function {
	return textFunction(cty.Number, []string{"a", "b"}, func(args []string) (cty.Value, error) {
		var times [2]time.Time
		for i := range times {
			var err error
			if times[i], err = time.Parse(time.RFC3339, args[i]); err != nil {
				return cty.NilVal, fmt.Errorf("argument %d is not a time in the format of RFC 3339, such as 2026-01-02T15:04:05Z", i+1)
			}
		}
		return cty.NumberIntVal(int64(times[0].Compare(times[1]))), nil
	})
}

// isPattern reports whether replace treats a text as a regular expression: /…/.
func isPattern(text string) bool {
	return len(text) > 1 && strings.HasPrefix(text, "/") && strings.HasSuffix(text, "/")
}

func replaceFunction() function.Function {
	return textFunction(cty.String, []string{"text", "old", "new"}, func(args []string) (cty.Value, error) {
		if isPattern(args[1]) {
			return stdlib.RegexReplace(cty.StringVal(args[0]), cty.StringVal(args[1][1:len(args[1])-1]), cty.StringVal(args[2]))
		}
		return cty.StringVal(strings.ReplaceAll(args[0], args[1], args[2])), nil
	})
}

// plainYAML rejects aliases: a few lines of them stand for a billion elements.
func plainYAML(args []cty.Value) string {
	const most = 512 << 10
	text := args[0].AsString()
	if len(text) > most {
		return fmt.Sprintf("the text is longer than %d bytes", most)
	}
	var document yaml.Node
	if err := yaml.Unmarshal([]byte(text), &document); err != nil {
		return "" // yamldecode reports it
	}
	for open := []*yaml.Node{&document}; len(open) > 0; {
		node := open[len(open)-1]
		open = append(open[:len(open)-1], node.Content...)
		if node.Kind == yaml.AliasNode {
			return "the text has an alias (*name): write its content instead"
		}
	}
	return ""
}

func sumFunction() function.Function {
	return function.New(&function.Spec{
		Params: []function.Parameter{param("numbers", cty.List(cty.Number))}, Type: function.StaticReturnType(cty.Number),
		Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
			if args[0].LengthInt() == 0 {
				return cty.NilVal, errors.New("the list is empty")
			}
			out := cty.Zero
			for _, n := range args[0].AsValueSlice() {
				if n.IsNull() {
					return cty.NilVal, errors.New("the list has an element that is null")
				}
				out = out.Add(n)
			}
			return out, nil
		},
	})
}

// everyFunction is alltrue, or with false anytrue.
func everyFunction(all bool) function.Function {
	return function.New(&function.Spec{
		Params: []function.Parameter{param("list", cty.List(cty.Bool))}, Type: function.StaticReturnType(cty.Bool),
		Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
			for _, v := range args[0].AsValueSlice() {
				if is := !v.IsNull() && v.True(); is != all {
					return cty.BoolVal(!all), nil
				}
			}
			return cty.BoolVal(all), nil
		},
	})
}

func oneFunction() function.Function {
	return function.New(&function.Spec{
		Params: []function.Parameter{param("list", cty.DynamicPseudoType)},
		Type: func(args []cty.Value) (cty.Type, error) {
			v, err := onlyElement(args[0])
			return v.Type(), err
		},
		Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) { return onlyElement(args[0]) },
	})
}

func onlyElement(list cty.Value) (cty.Value, error) {
	null := cty.NullVal(cty.DynamicPseudoType)
	if !list.CanIterateElements() || list.Type().IsMapType() || list.Type().IsObjectType() {
		return null, errors.New("want a list with one element, or none")
	}
	switch list.LengthInt() {
	case 0:
		return null, nil
	case 1:
		return list.AsValueSlice()[0], nil
	}
	return null, errors.New("the list has more than one element")
}

func indexFunction() function.Function {
	return function.New(&function.Spec{
		Params: []function.Parameter{param("list", cty.DynamicPseudoType), {Name: "value", Type: cty.DynamicPseudoType, AllowNull: true}}, Type: function.StaticReturnType(cty.Number),
		Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
			if !args[0].CanIterateElements() || args[0].Type().IsMapType() || args[0].Type().IsObjectType() {
				return cty.NilVal, errors.New("argument 1 must be a list")
			}
			for i, v := range args[0].AsValueSlice() {
				if sameValue(v, args[1]) {
					return cty.NumberIntVal(int64(i)), nil
				}
			}
			return cty.NilVal, errors.New("the list has no such element")
		},
	})
}

func sameValue(a, b cty.Value) bool {
	same := a.Equals(b)
	return same.IsKnown() && same.True()
}

func matchKeysFunction() function.Function {
	list := cty.List(cty.DynamicPseudoType)
	return function.New(&function.Spec{
		Params: []function.Parameter{param("values", list), param("keys", list), param("wanted", list)},
		Type:   func(args []cty.Value) (cty.Type, error) { return args[0].Type(), nil },
		Impl: func(args []cty.Value, result cty.Type) (cty.Value, error) {
			values, keys, wanted := args[0].AsValueSlice(), args[1].AsValueSlice(), args[2].AsValueSlice()
			if len(values) != len(keys) {
				return cty.NilVal, errors.New("values and keys must have the same length")
			}
			var out []cty.Value
			for i, key := range keys {
				for _, one := range wanted {
					if sameValue(key, one) {
						out = append(out, values[i])
						break
					}
				}
			}
			if len(out) == 0 {
				return cty.ListValEmpty(result.ElementType()), nil
			}
			return cty.ListVal(out), nil
		},
	})
}

func transposeFunction() function.Function {
	ty := cty.Map(cty.List(cty.String))
	return function.New(&function.Spec{
		Params: []function.Parameter{param("values", ty)}, Type: function.StaticReturnType(ty),
		Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
			lists := map[string][]cty.Value{}
			for it := args[0].ElementIterator(); it.Next(); {
				key, list := it.Element()
				for _, v := range list.AsValueSlice() {
					if v.IsNull() {
						return cty.NilVal, errors.New("a list has an element that is null")
					}
					lists[v.AsString()] = append(lists[v.AsString()], key)
				}
			}
			if len(lists) == 0 {
				return cty.MapValEmpty(cty.List(cty.String)), nil
			}
			out := map[string]cty.Value{}
			for key, list := range lists {
				out[key] = cty.ListVal(list)
			}
			return cty.MapVal(out), nil
		},
	})
}

func cidrContainsFunction() function.Function {
	return textFunction(cty.Bool, []string{"network", "part"}, func(args []string) (cty.Value, error) {
		network, err := netip.ParsePrefix(args[0])
		if err != nil {
			return cty.NilVal, errors.New("argument 1 is not a network in CIDR notation: write it as in 10.1.0.0/16 or fd00::/48")
		}
		if address, err := netip.ParseAddr(args[1]); err == nil {
			return cty.BoolVal(network.Contains(address)), nil
		}
		part, err := netip.ParsePrefix(args[1])
		if err != nil {
			return cty.NilVal, errors.New("argument 2 is neither an address nor a network in CIDR notation")
		}
		return cty.BoolVal(network.Contains(part.Addr()) && part.Bits() >= network.Bits()), nil
	})
}

// cidrSubnetsFunction divides a network into consecutive subnets, each longer by a number of bits.
func cidrSubnetsFunction() function.Function {
	return function.New(&function.Spec{
		Params: []function.Parameter{param("network", cty.String)}, VarParam: &function.Parameter{Name: "newbits", Type: cty.Number},
		Type: function.StaticReturnType(cty.List(cty.String)),
		Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
			network, err := netip.ParsePrefix(args[0].AsString())
			if err != nil {
				return cty.NilVal, errors.New("argument 1 is not a network in CIDR notation: write it as in 10.1.0.0/16 or fd00::/48")
			}
			network = network.Masked()
			var out []cty.Value
			next := network.Addr()
			for i, n := range args[1:] {
				more, accuracy := n.AsBigFloat().Int64()
				bits := network.Bits() + int(min(max(more, 0), 1000))
				if accuracy != 0 || more < 1 || more > 32 || bits > next.BitLen() {
					return cty.NilVal, fmt.Errorf("argument %d must be a whole number from 1 to 32, and the prefix must have that many bits left", i+2)
				}
				// The first subnet of this size that begins at or after the end of the previous one.
				subnet := netip.PrefixFrom(next, bits).Masked()
				if subnet.Addr().Compare(next) < 0 {
					subnet = netip.PrefixFrom(afterLast(subnet), bits)
				}
				if !subnet.Addr().IsValid() || !network.Contains(subnet.Addr()) {
					return cty.NilVal, fmt.Errorf("no space is left in the network for the subnet of argument %d", i+2)
				}
				out = append(out, cty.StringVal(subnet.String()))
				if next = afterLast(subnet); !next.IsValid() && i < len(args)-2 {
					return cty.NilVal, fmt.Errorf("no space is left in the network for the subnet of argument %d", i+3)
				}
			}
			if len(out) == 0 {
				return cty.ListValEmpty(cty.String), nil
			}
			return cty.ListVal(out), nil
		},
	})
}

// afterLast returns the address after a network, or an invalid one after the last network.
func afterLast(p netip.Prefix) netip.Addr {
	last := p.Addr().AsSlice()
	for bit := p.Bits(); bit < p.Addr().BitLen(); bit++ {
		last[bit/8] |= 1 << (7 - bit%8)
	}
	address, _ := netip.AddrFromSlice(last)
	return address.Next()
}
