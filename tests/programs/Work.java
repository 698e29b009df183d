// Garbage, threads, memory outside the heap, and other programs; the output is the same at each
// run.
import java.nio.ByteBuffer;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.zip.CRC32;
import java.util.zip.Deflater;
import java.util.zip.Inflater;

public final class Work {
    record Node(int n, String text, Node next) {}

    static String work(int seed) throws Exception {
        MessageDigest digest = MessageDigest.getInstance("SHA-256");
        Map<String, List<Node>> map = new HashMap<>();
        int state = seed * 7919 + 17;
        for (int i = 0; i < 40000; i++) {
            state = state * 1664525 + 1013904223;
            String key = "key " + Math.floorMod(state, 997);
            List<Node> list = map.computeIfAbsent(key, k -> new ArrayList<>());
            Node last = list.isEmpty() ? null : list.get(list.size() - 1);
            list.add(new Node(i, "x".repeat(i % 100), i % 50 == 0 ? null : last));
            if (list.size() > 20) list.subList(0, 10).clear();
        }
        for (int i = 0; i < 997; i++) {
            for (Node node : map.getOrDefault("key " + i, List.of())) digest.update((node.n + node.text).getBytes());
        }
        // zlib and direct buffers allocate by malloc.
        for (int round = 0; round < 12; round++) {
            ByteBuffer buffer = ByteBuffer.allocateDirect(1000 + round * 50000);
            for (int i = 0; i < buffer.capacity(); i += 61) buffer.put(i, (byte) (i * seed));
            byte[] bytes = new byte[buffer.capacity()];
            buffer.get(bytes);
            Deflater deflater = new Deflater(1 + round % 9);
            deflater.setInput(bytes);
            deflater.finish();
            byte[] packed = new byte[bytes.length + 100];
            int size = deflater.deflate(packed);
            deflater.end();
            Inflater inflater = new Inflater();
            inflater.setInput(packed, 0, size);
            byte[] again = new byte[bytes.length];
            if (inflater.inflate(again) != bytes.length) throw new IllegalStateException("short");
            inflater.end();
            CRC32 crc = new CRC32();
            crc.update(again);
            digest.update(Long.toString(crc.getValue()).getBytes());
        }
        return HexFormat.of().formatHex(digest.digest());
    }

    static String program(String... words) throws Exception {
        Process process = new ProcessBuilder(words).redirectErrorStream(true).start();
        process.getOutputStream().close();
        String text = new String(process.getInputStream().readAllBytes()).trim();
        return text + " " + process.waitFor();
    }

    public static void main(String[] arguments) throws Exception {
        ExecutorService pool = Executors.newFixedThreadPool(6);
        List<Future<String>> answers = new ArrayList<>();
        for (int n = 0; n < 6; n++) {
            int seed = n;
            answers.add(pool.submit(() -> work(seed)));
        }
        for (int n = 0; n < 8; n++) System.out.println(program("sh", "-c", "echo program " + n + "; exit " + n));
        for (Future<String> answer : answers) System.out.println(answer.get());
        pool.shutdown();
        List<Thread> threads = new ArrayList<>();
        int[] counts = new int[300];
        for (int n = 0; n < counts.length; n++) {
            int index = n;
            Thread thread = new Thread(() -> counts[index] = ("thread " + index).repeat(index).length());
            thread.start();
            threads.add(thread);
        }
        int sum = 0;
        for (int n = 0; n < counts.length; n++) {
            threads.get(n).join();
            sum += counts[n];
        }
        System.gc();
        System.out.println("threads " + sum);
    }
}
