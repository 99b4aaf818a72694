package reference

import (
	"math/big"
	"net/netip"

	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
)

// network reads a prefix such as 10.1.0.0/16.
func network(v ref.Val) (netip.Prefix, ref.Val) {
	text, _ := v.(types.String)
	prefix, err := netip.ParsePrefix(string(text))
	if err != nil {
		return prefix, failed("a network is written as in 10.1.0.0/16 or fd00::/48")
	}
	return prefix.Masked(), nil
}

// plus gives the address that is so many after the first of a network.
func plus(prefix netip.Prefix, n *big.Int) netip.Addr {
	first := new(big.Int).SetBytes(prefix.Addr().AsSlice())
	address := make([]byte, prefix.Addr().BitLen()/8)
	out, _ := netip.AddrFromSlice(first.Add(first, n).FillBytes(address))
	return out
}

// cidrHost is the address with a number within a network; from its end if negative.
func cidrHost(in, number ref.Val) ref.Val {
	prefix, problem := network(in)
	if problem != nil {
		return problem
	}
	n := big.NewInt(int64(number.(types.Int)))
	size := new(big.Int).Lsh(big.NewInt(1), uint(prefix.Addr().BitLen()-prefix.Bits()))
	if n.Sign() < 0 {
		n.Add(n, size)
	}
	if n.Sign() < 0 || n.Cmp(size) >= 0 {
		return failed("cidrhost(…): the network has no address with this number")
	}
	return types.String(plus(prefix, n).String())
}

// cidrNetmask is the mask of an IPv4 network, as some old interfaces want it.
func cidrNetmask(in ref.Val) ref.Val {
	prefix, problem := network(in)
	if problem != nil {
		return problem
	}
	if !prefix.Addr().Is4() {
		return failed("cidrnetmask(…): only IPv4 has netmasks")
	}
	mask := uint32(0xffffffff) << (32 - prefix.Bits())
	return types.String(netip.AddrFrom4([4]byte{byte(mask >> 24), byte(mask >> 16), byte(mask >> 8), byte(mask)}).String())
}

// cidrSubnet is the network with a number, of those that are longer by so many bits.
func cidrSubnet(in, longer, number ref.Val) ref.Val {
	prefix, problem := network(in)
	if problem != nil {
		return problem
	}
	more, n := int64(longer.(types.Int)), int64(number.(types.Int))
	length := prefix.Addr().BitLen()
	if more < 0 || more > int64(length-prefix.Bits()) {
		return failed("cidrsubnet(…): the network cannot be divided by so many bits")
	}
	if n < 0 || more < 63 && n >= 1<<more {
		return failed("cidrsubnet(…): there is no network with this number")
	}
	bits := prefix.Bits() + int(more)
	start := new(big.Int).Lsh(big.NewInt(n), uint(length-bits))
	return types.String(netip.PrefixFrom(plus(prefix, start), bits).String())
}
