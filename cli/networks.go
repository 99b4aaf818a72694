package cli

import (
	"fmt"
	"net/netip"
	"strings"
)

// networks is the value of a flag with networks.
type networks []netip.Prefix

func (n *networks) String() string {
	texts := make([]string, len(*n))
	for i, network := range *n {
		texts[i] = network.String()
	}
	return strings.Join(texts, ",")
}

func (*networks) Type() string { return "networks" }

// Set implements pflag.Value.
func (n *networks) Set(text string) error {
	for part := range strings.SplitSeq(text, ",") {
		network, err := netip.ParsePrefix(strings.TrimSpace(part))
		if err != nil {
			return fmt.Errorf("%q is no network: use an address and the length of its prefix, such as 10.0.0.0/8", part)
		}
		*n = append(*n, network.Masked())
	}
	return nil
}
