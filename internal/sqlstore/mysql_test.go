package sqlstore_test

import (
	"net/url"
	"testing"

	"github.com/oncemill/oncemill/internal/sqlstore"
)

func TestAppendRow_WritesWhatNoSessionReadsOtherwise(t *testing.T) {
	t.Parallel()
	row := sqlstore.AppendRow([]byte("VALUES "), `a'\b`, []byte{0, 255}, []byte(nil), []byte{}, -1, int64(2),
		uint64(1<<63),
		true, false, sqlstore.Expr("NOW(6)"))
	const want = `VALUES (x'61275c62',x'00ff',NULL,x'',-1,2,9223372036854775808,1,0,NOW(6))`
	if string(row) != want {
		t.Errorf("the row is %s, want %s", row, want)
	}
}

func TestMySQLDSN(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{
		"mysql://root@db/shop":                            "root@tcp(db:3306)/shop",
		"mysql://u:p%40%2Fw@127.0.0.1:3307/shop?tls=true": "u:p@/w@tcp(127.0.0.1:3307)/shop?tls=true",
		"mysql://root@[::1]:3306/":                        "root@tcp([::1]:3306)/",
	} {
		at, err := url.Parse(address)
		if err != nil {
			t.Fatal(err)
		}
		if got := sqlstore.MySQLDSN(at); got != want {
			t.Errorf("%s is %s, want %s", address, got, want)
		}
	}
}
