<?php
// Exercises the modules that Debian's php-cli loads, and the heap below them. All output is the same
// at each run; an error ends the script with a status.
declare(strict_types=1);
set_error_handler(function (int $no, string $text, string $file, int $line) {
    throw new ErrorException($text, 0, $no, $file, $line);
});

function heading(string $name): void {
    echo "== $name\n";
}

foreach (['pdo', 'pdo_sqlite', 'sqlite3', 'phar', 'iconv', 'fileinfo', 'sockets', 'posix', 'ctype', 'ffi'] as $module) {
    if (!extension_loaded($module)) {
        throw new Exception("module $module is not loaded");
    }
}

heading('strings and arrays');
$lists = [];
for ($i = 0; $i < 60000; $i++) {
    $lists[$i * 7919 % 4999][] = ['n' => $i, 'text' => str_repeat(chr(97 + $i % 26), $i % 200)];
}
ksort($lists);
$hash = hash_init('sha256');
foreach ($lists as $key => $list) {
    foreach ($list as $item) {
        hash_update($hash, "$key {$item['n']} {$item['text']}");
    }
}
echo count($lists), ' ', hash_final($hash), "\n";
$json = json_encode($lists);
echo strlen($json), ' ', md5(serialize(json_decode($json, true))), "\n";
echo md5(serialize(unserialize(serialize($lists)))), "\n";
usort($lists[17], fn($a, $b) => strcmp($a['text'], $b['text']) ?: $a['n'] <=> $b['n']);
echo implode(',', array_column($lists[17], 'n')), "\n";
unset($lists, $json);

heading('regular expressions');
$text = implode(' ', array_map(fn($n) => "word$n-" . $n * 3, range(1, 20000)));
echo preg_match_all('/(\w+?)(\d+)-(\d*5)\b/', $text), ' ';
echo md5(preg_replace_callback('/(\d+)-(\d+)/', fn($m) => $m[2] . str_repeat('<', $m[1] % 7), $text)), "\n";

heading('cycles and generators');
class Node {
    public array $next = [];
    public function __construct(public int $n) {}
}
function cycles(int $count): Generator {
    for ($i = 0; $i < $count; $i++) {
        [$a, $b] = [new Node($i), new Node(-$i)];
        $a->next[] = $b;
        $b->next[] = $a;
        yield $a->n + $b->n + count($a->next);
    }
}
$sum = 0;
foreach (cycles(50000) as $n) $sum += $n;
gc_collect_cycles();
echo $sum, ' ', gc_status()['runs'] > 0 ? 'collected' : 'not collected', "\n";

heading('pdo_sqlite');
$db = new PDO('sqlite::memory:', null, null, [PDO::ATTR_ERRMODE => PDO::ERRMODE_EXCEPTION]);
$db->exec('CREATE TABLE t(id INTEGER PRIMARY KEY, k INTEGER, name TEXT, data BLOB)');
$db->sqliteCreateFunction('mangle', fn($s) => strrev(strtoupper($s)), 1);
$db->beginTransaction();
$insert = $db->prepare('INSERT INTO t(k, name, data) VALUES (?, ?, ?)');
for ($i = 0; $i < 20000; $i++) {
    $insert->execute([$i * 31 % 997, "name $i", $i % 10 ? null : str_repeat("\0\1", $i % 500)]);
}
$db->commit();
$db->exec('CREATE INDEX by_k ON t(k, name)');
foreach ($db->query('SELECT k, count(*), max(mangle(name)), total(length(data)) FROM t GROUP BY k % 7', PDO::FETCH_NUM) as $row) {
    echo implode('|', $row), "\n";
}
$lite = new SQLite3(':memory:');
$lite->createAggregate('join', fn($c, $n, $v) => ($c ?? '') . $v, fn($c) => md5($c), 1);
$query = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5000) SELECT 'x' || i AS v FROM n";
echo $lite->querySingle("SELECT \"join\"(v) FROM ($query)"), "\n";
try {
    $db->query('SELECT nothing FROM nowhere');
} catch (PDOException $e) {
    echo $e->getMessage(), "\n";
}

heading('iconv, fileinfo, ctype, tokenizer');
$latin = iconv('UTF-8', 'ISO-8859-1//TRANSLIT', str_repeat('Grüße aus Köln — ', 500));
echo strlen($latin), ' ', md5(iconv('ISO-8859-1', 'UTF-16LE', $latin)), "\n";
$info = new finfo(FILEINFO_MIME);
echo $info->buffer("\x89PNG\r\n\x1a\n"), ' ', $info->file(__FILE__), "\n";
echo count(token_get_all(file_get_contents(__FILE__))) > 500 ? 'tokens' : 'few tokens', ' ', var_export(ctype_alpha('abc'), true), "\n";

heading('phar and streams');
$phar = new PharData(getcwd() . '/archive.tar');
for ($i = 0; $i < 50; $i++) $phar["dir/file$i"] = str_repeat("line $i\n", $i * 20);
unset($phar);
$hash = hash_init('md5');
$files = iterator_to_array(new RecursiveIteratorIterator(new PharData(getcwd() . '/archive.tar')));
ksort($files);
foreach ($files as $file) hash_update($hash, $file->getFilename() . file_get_contents($file->getPathname()));
echo count($files), ' ', hash_final($hash), "\n";
$packed = gzencode(str_repeat('abcdefghij', 100000), 9);
echo strlen(gzdecode($packed)), ' ', md5(gzdecode($packed)), "\n";

heading('processes');
[$mine, $theirs] = stream_socket_pair(STREAM_PF_UNIX, STREAM_SOCK_STREAM, 0);
$kids = [];
for ($n = 1; $n <= 6; $n++) {
    $pid = pcntl_fork();
    if ($pid === 0) {
        $parts = [];
        for ($i = 0; $i < 5000; $i++) $parts[] = str_repeat((string) $i, $n);
        fwrite($theirs, sprintf("%d %s\n", $n, md5(implode(',', $parts))));
        posix_kill(posix_getpid(), $n == 6 ? SIGKILL : SIGCONT);
        exit($n);
    }
    $kids[$n] = $pid;
}
fclose($theirs);
foreach ($kids as $n => $pid) {
    pcntl_waitpid($pid, $status);
    echo $n, pcntl_wifexited($status) ? ' exit ' . pcntl_wexitstatus($status) : ' signal ' . pcntl_wtermsig($status), "\n";
}
$lines = array_filter(explode("\n", stream_get_contents($mine)));
sort($lines);
echo implode("\n", $lines), "\n";
for ($i = 0; $i < 5; $i++) echo trim(shell_exec("echo \$(($i * 7))")), ' ';
$proc = proc_open(['sort', '-n'], [['pipe', 'r'], ['pipe', 'w']], $pipes);
foreach (range(3000, 1) as $n) fwrite($pipes[0], "$n\n");
fclose($pipes[0]);
echo md5(stream_get_contents($pipes[1])), ' ', proc_close($proc), "\n";
echo "end\n";
