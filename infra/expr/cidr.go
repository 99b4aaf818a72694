package expr

import (
	"math/big"
	"net/netip"

	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
)

// parseNetwork parses a prefix such as 10.1.0.0/16.
func parseNetwork(v ref.Val) (netip.Prefix, ref.Val) {
	text, _ := v.(types.String)
	prefix, err := netip.ParsePrefix(string(text))
	if err != nil {
		return prefix, errorValue("not a network in CIDR notation: write it as in 10.1.0.0/16 or fd00::/48")
	}
	return prefix.Masked(), nil
}

// addOffset returns the address at offset n from the first address of a network.
func addOffset(prefix netip.Prefix, n *big.Int) netip.Addr {
	first := new(big.Int).SetBytes(prefix.Addr().AsSlice())
	address := make([]byte, prefix.Addr().BitLen()/8)
	out, _ := netip.AddrFromSlice(first.Add(first, n).FillBytes(address))
	return out
}

// cidrHost returns the host address with a number within a network, counted from the end if
// negative.
func cidrHost(in, number ref.Val) ref.Val {
	prefix, problem := parseNetwork(in)
	if problem != nil {
		return problem
	}
	n := big.NewInt(int64(number.(types.Int)))
	size := new(big.Int).Lsh(big.NewInt(1), uint(prefix.Addr().BitLen()-prefix.Bits()))
	if n.Sign() < 0 {
		n.Add(n, size)
	}
	if n.Sign() < 0 || n.Cmp(size) >= 0 {
		return errorValue("cidrhost(…): the host number is out of range for this network")
	}
	return types.String(addOffset(prefix, n).String())
}

// cidrNetmask returns the mask of an IPv4 network, which some older interfaces expect.
func cidrNetmask(in ref.Val) ref.Val {
	prefix, problem := parseNetwork(in)
	if problem != nil {
		return problem
	}
	if !prefix.Addr().Is4() {
		return errorValue("cidrnetmask(…): only IPv4 networks have a netmask")
	}
	mask := uint32(0xffffffff) << (32 - prefix.Bits())
	return types.String(netip.AddrFrom4([4]byte{byte(mask >> 24), byte(mask >> 16), byte(mask >> 8), byte(mask)}).String())
}

// cidrSubnet returns the subnet with a number, among those whose prefix is longer by a number of
// bits.
func cidrSubnet(in, longer, number ref.Val) ref.Val {
	prefix, problem := parseNetwork(in)
	if problem != nil {
		return problem
	}
	more, n := int64(longer.(types.Int)), int64(number.(types.Int))
	length := prefix.Addr().BitLen()
	if more < 0 || more > int64(length-prefix.Bits()) {
		return errorValue("cidrsubnet(…): the prefix has too few bits left for this many new bits")
	}
	if n < 0 || more < 63 && n >= 1<<more {
		return errorValue("cidrsubnet(…): the subnet number is out of range")
	}
	bits := prefix.Bits() + int(more)
	start := new(big.Int).Lsh(big.NewInt(n), uint(length-bits))
	return types.String(netip.PrefixFrom(addOffset(prefix, start), bits).String())
}
